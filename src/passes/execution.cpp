#include "execution.h"

#include <map>

#include "refusals.h"
#include "stagecraft/schedule/action_text.h"
#include "stagecraft/schedule/dataflow.h"
#include "stagecraft/schedule/message.h"
#include "stagecraft/schedule/stage_microbatch_table.h"

namespace stagecraft::detail {
namespace {

class TaggedReplay {
 public:
  TaggedReplay(const Schedule& schedule, bool communicates)
      : schedule_(schedule), communicates_(communicates), given_(schedule), flow_(schedule) {}

  std::optional<Refusal> run() {
    flow_.run([&](std::size_t, const Action& action) {
      if (lacks_input(action.first()) || lacks_input(action.second())) return false;
      for_each_part(action, [&](const Action& part) { give(part); });
      return true;
    });
    const int blocked = flow_.first_blocked();
    if (blocked < 0) return std::nullopt;
    return refuse_cycle(
        schedule_, find_cycle(schedule_, flow_.position(), RankId(blocked), [&](RankId rank) { return need_of(rank); }),
        "it can never run, since what it needs stands behind what waits for it: change the order");
  }

 private:
  enum Given : std::uint8_t { kForwardGiven = 1, kBackwardGiven = 2 };

  /// Without communication a compute stands for the SEND that would follow it.
  [[nodiscard]] Action given_by(const Action& part) const {
    if (!communicates_) return message_given(schedule_.placement, part);
    return is_send(part.kind()) ? part : Action::idle();
  }

  static std::uint8_t bit(const Action& send) {
    return send.kind() == ActionKind::kSendForward ? kForwardGiven : kBackwardGiven;
  }

  [[nodiscard]] bool lacks_input(const Action& part) const {
    const Action send = message_needed(schedule_.placement, part);
    return !send.is_idle() && (given_(send.stage(), send.microbatch()) & bit(send)) == 0;
  }

  /// Marks what the action gives to another rank, and lets that rank try again.
  void give(const Action& part) {
    const Action send = given_by(part);
    if (send.is_idle()) return;
    given_(send.stage(), send.microbatch()) |= bit(send);
    flow_.wake(schedule_.placement.rank_of(peer_stage(send)).index());
  }

  [[nodiscard]] Need need_of(RankId rank) const {
    const Action& blocked = schedule_.rows[rank.index()][flow_.position()[rank.index()]];
    const Action lacking = lacks_input(blocked.first()) ? blocked.first() : blocked.second();
    const Action send = message_needed(schedule_.placement, lacking);
    const RankId giver = schedule_.placement.rank_of(send.stage());
    if (communicates_) return {giver, send};
    for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward, ActionKind::kBackwardInput}) {
      const Action compute(kind, send.stage(), send.microbatch());
      const bool gives_it = message_given(schedule_.placement, compute) == send;
      if (gives_it && step_of(schedule_.rows[giver.index()], compute) >= 0) return {giver, compute};
    }
    return {giver, send};
  }

  const Schedule& schedule_;
  bool communicates_;
  StageMicrobatchTable<std::uint8_t> given_;
  Dataflow flow_;
};

class RendezvousReplay {
 public:
  explicit RendezvousReplay(const Schedule& schedule) : schedule_(schedule), next_(schedule.rows.size(), 0) {}

  std::optional<Refusal> run() {
    std::vector<std::size_t> arrived;
    for (std::size_t r = schedule_.rows.size(); r-- > 0;) {
      skip_to_message(r);
      arrived.push_back(r);
    }
    // Whichever side of a message arrives second finds the other one waiting; the first side need not be looked at
    // again.
    while (!arrived.empty()) {
      const std::size_t r = arrived.back();
      arrived.pop_back();
      while (next_[r] < schedule_.rows[r].size()) {
        const Need need = need_of(RankId(r));
        const std::size_t peer = need.rank.index();
        if (next_[peer] == schedule_.rows[peer].size() || schedule_.rows[peer][next_[peer]] != need.action) break;
        ++next_[peer];
        skip_to_message(peer);
        arrived.push_back(peer);
        ++next_[r];
        skip_to_message(r);
      }
    }
    for (std::size_t r = 0; r < next_.size(); ++r) {
      if (next_[r] == schedule_.rows[r].size()) continue;
      return refuse_cycle(
          schedule_, find_cycle(schedule_, next_, RankId(r), [&](RankId rank) { return need_of(rank); }),
          "under blocking sends and receives it never completes: use place_receives, or a transport with tags");
    }
    return std::nullopt;
  }

 private:
  void skip_to_message(std::size_t r) {
    const Row& row = schedule_.rows[r];
    while (next_[r] < row.size() && !is_communication(row[next_[r]].kind())) ++next_[r];
  }

  [[nodiscard]] Need need_of(RankId rank) const {
    const Action other_side = counterpart(schedule_.rows[rank.index()][next_[rank.index()]]);
    return {schedule_.placement.rank_of(other_side.stage()), other_side};
  }

  const Schedule& schedule_;
  std::vector<std::size_t> next_;
};

}  // namespace

std::optional<Refusal> check_tagged(const Schedule& schedule, bool communicates) {
  return TaggedReplay(schedule, communicates).run();
}

std::optional<Refusal> check_rendezvous(const Schedule& schedule) { return RendezvousReplay(schedule).run(); }

std::optional<Refusal> check_pair_order(const Schedule& schedule) {
  // Per directed pair of ranks, the receives in the order the sends ask for.
  std::map<std::pair<RankId, RankId>, std::pair<std::vector<Action>, std::size_t>> expected;
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    for (const Action& action : schedule.rows[r]) {
      if (!is_send(action.kind())) continue;
      const RankId peer = schedule.placement.rank_of(peer_stage(action));
      expected[{RankId(r), peer}].first.push_back(counterpart(action));
    }
  }
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    for (std::size_t i = 0; i < schedule.rows[r].size(); ++i) {
      const Action& action = schedule.rows[r][i];
      if (!is_receive(action.kind())) continue;
      const RankId peer = schedule.placement.rank_of(peer_stage(action));
      auto& [receives, taken] = expected[{peer, RankId(r)}];
      if (taken < receives.size() && receives[taken] == action) {
        ++taken;
        continue;
      }
      const std::string ordinal = std::to_string(taken + 1);
      const std::string sent = taken < receives.size() ? to_text(counterpart(receives[taken])) : "nothing";
      return refuse_at(
          schedule, RankId(r), i,
          "it is receive " + ordinal + " from rank " + std::to_string(peer.value) + ", whose send " + ordinal +
              " to here is " + sent +
              ": matched by order it would take the wrong message; use place_receives, or a transport with tags");
    }
  }
  return std::nullopt;
}

}  // namespace stagecraft::detail
