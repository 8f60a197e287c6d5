#include "checks.h"

#include <algorithm>
#include <map>
#include <memory>

#include "stagecraft/core/in_parts.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/dataflow.h"

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

  /// The action itself if it is a SEND; without communication, the SEND that would follow a compute; else idle.
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

  /// Marks the message that the action sends, if any, and wakes the receiving rank.
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

/// Replays only the SENDs and RECVs of each rank. A SEND and its RECV have the same message number.
class RendezvousReplay {
 public:
  explicit RendezvousReplay(const Schedule& schedule)
      : schedule_(schedule),
        // Large enough if every slot is a message, plus an end mark per row. Pages never written take no memory.
        ends_(new End[schedule.slots() + schedule.rows.size()]) {
    End* begin = ends_.get();
    for (const Row& row : schedule.rows) {
      begin_.push_back(begin);
      begin += row.size() + 1;
    }
    in_parts(schedule.rows.size(), schedule.slots(), [&](std::size_t first, std::size_t last) {
      for (std::size_t r = first; r < last; ++r) list_messages(r);
    });
    next_.assign(begin_.begin(), begin_.end());
  }

  std::optional<Refusal> run() {
    std::vector<std::uint32_t> arrived;
    for (std::size_t r = next_.size(); r-- > 0;) arrived.push_back(static_cast<std::uint32_t>(r));
    // The side of a message that arrives second finds the other side waiting and advances both, so a rank that waits
    // need not be polled.
    while (!arrived.empty()) {
      const std::uint32_t r = arrived.back();
      arrived.pop_back();
      const End* here = next_[r];
      while (here->message != kNoMessage) {
        const std::uint32_t peer = here->peer;
        if (next_[peer]->message != here->message) break;
        ++next_[peer];
        if (arrived.empty() || arrived.back() != peer) arrived.push_back(peer);
        ++here;
      }
      next_[r] = here;
    }
    for (std::size_t r = 0; r < next_.size(); ++r) {
      if (next_[r]->message != kNoMessage) return refuse(RankId(r));
    }
    return std::nullopt;
  }

 private:
  /// One end of a message: a SEND or a RECV.
  struct End {
    std::uint32_t message;
    std::uint32_t peer;  // the rank at the other end
  };
  static constexpr std::uint32_t kNoMessage = UINT32_MAX;  // end mark of a rank's list

  static bool is_message(const Action& action) { return is_communication(action.kind()); }

  void list_messages(std::size_t rank) {
    End* out = begin_[rank];
    for (const Action& action : schedule_.rows[rank]) {
      if (is_message(action)) *out++ = end_of(action);
    }
    *out = {kNoMessage, 0};
  }

  /// Numbers a message by direction, lower stage and microbatch. Numbers stay below 4 * kMaxSlots.
  [[nodiscard]] End end_of(const Action& action) const {
    static_assert(4 * kMaxSlots < kNoMessage);
    const StageId peer = peer_stage(action);
    const bool forward = action.kind() == ActionKind::kSendForward || action.kind() == ActionKind::kRecvForward;
    const auto stage = static_cast<std::uint32_t>(std::min(action.stage(), peer).value) * 2 + (forward ? 0 : 1);
    return {stage * static_cast<std::uint32_t>(schedule_.microbatches) +
                static_cast<std::uint32_t>(action.microbatch().value),
            static_cast<std::uint32_t>(schedule_.placement.rank_of(peer).value)};
  }

  [[nodiscard]] Refusal refuse(RankId blocked) const {
    std::vector<std::size_t> position;  // in the rows
    for (std::size_t r = 0; r < next_.size(); ++r) {
      const Row& row = schedule_.rows[r];
      std::size_t at = 0;
      for (auto passed = next_[r] - begin_[r]; at < row.size(); ++at) {
        if (is_message(row[at]) && passed-- == 0) break;
      }
      position.push_back(at);
    }
    const auto need_of = [&](RankId rank) {
      const Action other_side = counterpart(schedule_.rows[rank.index()][position[rank.index()]]);
      return Need{schedule_.placement.rank_of(other_side.stage()), other_side};
    };
    return refuse_cycle(
        schedule_, find_cycle(schedule_, position, blocked, need_of),
        "under blocking sends and receives it never completes: use place_receives, or a transport with tags");
  }

  const Schedule& schedule_;
  std::unique_ptr<End[]> ends_;   // NOLINT(*-avoid-c-arrays): left uninitialised
  std::vector<End*> begin_;       // per rank
  std::vector<const End*> next_;  // per rank: its next message
};

}  // namespace

std::optional<Refusal> check_tagged(const Schedule& schedule, bool communicates) {
  return TaggedReplay(schedule, communicates).run();
}

std::optional<Refusal> check_rendezvous(const Schedule& schedule) { return RendezvousReplay(schedule).run(); }

std::optional<Refusal> check_pair_order(const Schedule& schedule) {
  // Per directed pair of ranks: the RECVs in the order of the SENDs, and how many have been matched.
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
