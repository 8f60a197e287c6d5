// The ranks are swept in ascending order, one action per rank and sweep. When an action runs whose result a stage on
// another rank needs, its SEND is written here and its RECV, at that very moment, at the end of the other rank's list.
// All lists are thus cuts of one global order, in which each message is a single event: no model of communication can
// deadlock on it.

#include "stagecraft/core/error.h"
#include "stagecraft/core/rank_set.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/schedule/action_text.h"
#include "stagecraft/schedule/message.h"
#include "stagecraft/schedule/stage_microbatch_table.h"
#include "well_formed.h"

namespace stagecraft {
namespace {

/// What has happened to a (stage, microbatch) so far.
enum Past : std::uint8_t { kInputHere = 1, kForwardDone = 2, kGradientHere = 4, kBackwardDone = 8 };

class Lowering {
 public:
  explicit Lowering(Schedule& schedule)
      : schedule_(schedule),
        placement_(schedule.placement),
        past_(schedule),
        next_(schedule.rows.size(), 0),
        runnable_(schedule.rows.size()),
        lowered_(schedule.rows.size()) {
    reserve();
    for (std::size_t r = 0; r < next_.size(); ++r) runnable_.insert(r);
  }

  void run() {
    std::size_t unfinished = next_.size();
    while (unfinished > 0) {
      if (runnable_.next(0) == RankSet::npos) refuse();
      for (std::size_t r = runnable_.next(0); r != RankSet::npos; r = runnable_.next(r + 1)) {
        const Action& action = schedule_.rows[r][next_[r]];
        if (!ready(action)) {
          runnable_.erase(r);  // until a RECV is written to its list
          continue;
        }
        if (!action.is_idle()) emit(action, r);
        if (++next_[r] < schedule_.rows[r].size()) continue;
        runnable_.erase(r);
        --unfinished;
      }
    }
    schedule_.rows = std::move(lowered_);
  }

 private:
  /// Exact sizes, so that a large schedule is never held twice while a list grows.
  void reserve() {
    std::vector<std::size_t> sizes(lowered_.size(), 0);
    for (std::size_t r = 0; r < lowered_.size(); ++r) {
      for (const Action& action : schedule_.rows[r]) {
        if (action.is_idle()) continue;
        ++sizes[r];
        for_each_part(action, [&](const Action& part) {
          const Action send = message_given(placement_, part);
          if (send.is_idle()) return;
          ++sizes[r];
          ++sizes[placement_.rank_of(peer_stage(send)).index()];
        });
      }
    }
    for (std::size_t r = 0; r < lowered_.size(); ++r) lowered_[r].reserve(sizes[r]);
  }

  [[nodiscard]] bool part_ready(const Action& part) const {
    const StageId s = part.stage();
    if (part.kind() == ActionKind::kForward && s.value > 0) {
      return placement_.share_rank(s, s - 1) ? (past_(s - 1, part.microbatch()) & kForwardDone) != 0
                                             : (past_(s, part.microbatch()) & kInputHere) != 0;
    }
    if (gives_input_gradient(part.kind()) && s.value + 1 < schedule_.stages()) {
      return placement_.share_rank(s, s + 1) ? (past_(s + 1, part.microbatch()) & kBackwardDone) != 0
                                             : (past_(s, part.microbatch()) & kGradientHere) != 0;
    }
    return true;
  }

  [[nodiscard]] bool ready(const Action& action) const {
    return part_ready(action.first()) && (!action.is_overlap() || part_ready(action.second()));
  }

  void emit(const Action& action, std::size_t rank) {
    lowered_[rank].push_back(action);
    for_each_part(action, [&](const Action& part) {
      if (part.kind() == ActionKind::kForward) past_(part.stage(), part.microbatch()) |= kForwardDone;
      if (gives_input_gradient(part.kind())) past_(part.stage(), part.microbatch()) |= kBackwardDone;
      const Action send = message_given(placement_, part);
      if (send.is_idle()) return;
      const Action receive = counterpart(send);
      const std::size_t peer = placement_.rank_of(receive.stage()).index();
      lowered_[rank].push_back(send);
      lowered_[peer].push_back(receive);
      past_(receive.stage(), receive.microbatch()) |=
          receive.kind() == ActionKind::kRecvForward ? kInputHere : kGradientHere;
      if (next_[peer] < schedule_.rows[peer].size()) runnable_.insert(peer);
    });
  }

  [[noreturn]] void refuse() const {
    for (std::size_t r = 0; r < next_.size(); ++r) {
      if (next_[r] == schedule_.rows[r].size()) continue;
      const std::string action = to_text(schedule_.rows[r][next_[r]]);
      throw ScheduleError(
          "send_recv: rank " + std::to_string(r) + ", step " + std::to_string(next_[r]) + ": " + action +
              " waits for a result that no rank can reach: the order cannot execute; run check to see the cycle",
          RankId(r), static_cast<int>(next_[r]), action);
    }
    throw InternalError("send_recv stopped with every rank finished");
  }

  Schedule& schedule_;
  const Placement& placement_;
  StageMicrobatchTable<std::uint8_t> past_;
  std::vector<std::size_t> next_;
  RankSet runnable_;
  std::vector<Row> lowered_;
};

}  // namespace

void send_recv(Schedule& schedule) {
  detail::require_well_formed(schedule, "send_recv");
  detail::require_none(schedule, "send_recv", is_communication,
                       "the schedule has communication already: give one without");
  Lowering(schedule).run();
}

}  // namespace stagecraft
