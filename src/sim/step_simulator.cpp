#include "stagecraft/sim/step_simulator.h"

#include <algorithm>

#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/dataflow.h"

namespace stagecraft {
namespace {

/// What has happened to a (stage, microbatch) so far. In a schedule without messages, other ranks see a result one step
/// after it is computed ("Seen").
enum Past : std::uint8_t {
  kForwardDone = 1,
  kBackwardDone = 2,
  kForwardSent = 4,
  kBackwardSent = 8,
  kForwardReceived = 16,
  kBackwardReceived = 32,
  kForwardSeen = 64,
  kBackwardSeen = 128,
};

class StepReplay {
 public:
  explicit StepReplay(const Schedule& schedule)
      : schedule_(schedule),
        placement_(schedule.placement),
        communicates_(schedule.communicates()),
        past_(schedule),
        next_(schedule.rows.size(), 0),
        acted_in_(schedule.rows.size(), -1),
        awake_(schedule.rows.size()) {
    for (std::size_t r = 0; r < next_.size(); ++r) {
      skip_idle(r);
      if (next_[r] < schedule_.rows[r].size()) awake_.insert(r);
    }
  }

  /// Calls `emit(rank, slot, step)` for every action in the order of execution. Returns the number of steps.
  template <typename Emit>
  int run(Emit&& emit) {
    int step = 0;
    for (; awake_.next(0) != RankSet::npos; ++step) {
      // A rank whose next action is not ready sleeps until another rank wakes it. The second sweep is for ranks woken
      // by a higher rank in the same step.
      const bool progress = sweep(step, emit);
      sweep(step, emit);
      let_others_see();
      if (!progress) break;
    }
    for (std::size_t r = 0; r < next_.size(); ++r) {
      if (next_[r] < schedule_.rows[r].size()) refuse(r, step);
    }
    return step;
  }

 private:
  template <typename Emit>
  bool sweep(int step, Emit&& emit) {
    bool progress = false;
    for (std::size_t r = awake_.next(0); r != RankSet::npos; r = awake_.next(r + 1)) {
      if (acted_in_[r] == step) continue;
      const Action& action = schedule_.rows[r][next_[r]];
      if (!ready(action.first()) || (action.is_overlap() && !ready(action.second()))) {
        awake_.erase(r);
        continue;
      }
      emit(r, next_[r], step);
      acted_in_[r] = step;
      progress = true;
      for_each_part(action, [&](const Action& part) { mark_done(part); });
      ++next_[r];
      skip_idle(r);
      if (next_[r] == schedule_.rows[r].size()) awake_.erase(r);
    }
    return progress;
  }

  void skip_idle(std::size_t r) {
    const Row& row = schedule_.rows[r];
    while (next_[r] < row.size() && row[next_[r]].is_idle()) ++next_[r];
  }

  [[nodiscard]] bool has(StageId stage, const Action& a, unsigned any_of) const {
    return (past_(stage, a.microbatch()) & any_of) != 0;
  }

  [[nodiscard]] bool ready(const Action& a) const {
    const StageId s = a.stage();
    switch (a.kind()) {
      case ActionKind::kForward:
        if (s.value == 0) return true;
        if (placement_.share_rank(s, s - 1)) return has(s - 1, a, kForwardDone);
        return communicates_ ? has(s, a, kForwardReceived) : has(s - 1, a, kForwardSeen);
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        if (s.value == schedule_.stages() - 1) return true;
        if (placement_.share_rank(s, s + 1)) return has(s + 1, a, kBackwardDone);
        return communicates_ ? has(s, a, kBackwardReceived) : has(s + 1, a, kBackwardSeen);
      case ActionKind::kSendForward:
        return has(s, a, kForwardDone);
      case ActionKind::kSendBackward:
        return has(s, a, kBackwardDone);
      case ActionKind::kRecvForward:
        return has(s - 1, a, kForwardSent);
      case ActionKind::kRecvBackward:
        return has(s + 1, a, kBackwardSent);
      default:
        return true;
    }
  }

  void mark_done(const Action& a) {
    switch (a.kind()) {
      case ActionKind::kForward:
        return mark_compute(a, kForwardDone);
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        return mark_compute(a, kBackwardDone);
      case ActionKind::kSendForward:
      case ActionKind::kSendBackward:
        past_(a.stage(), a.microbatch()) |= a.kind() == ActionKind::kSendForward ? kForwardSent : kBackwardSent;
        return wake(peer_stage(a));
      case ActionKind::kRecvForward:
        past_(a.stage(), a.microbatch()) |= kForwardReceived;
        return;
      case ActionKind::kRecvBackward:
        past_(a.stage(), a.microbatch()) |= kBackwardReceived;
        return;
      default:
        return;
    }
  }

  void mark_compute(const Action& a, Past done) {
    past_(a.stage(), a.microbatch()) |= done;
    if (!communicates_) unseen_.push_back(a);
  }

  void let_others_see() {
    for (const Action& a : unseen_) {
      const bool forward = a.kind() == ActionKind::kForward;
      past_(a.stage(), a.microbatch()) |= forward ? kForwardSeen : kBackwardSeen;
      const StageId taker = forward ? a.stage() + 1 : a.stage() - 1;
      if (placement_.contains(taker)) wake(taker);
    }
    unseen_.clear();
  }

  void wake(StageId stage) {
    const std::size_t r = placement_.rank_of(stage).index();
    if (next_[r] < schedule_.rows[r].size()) awake_.insert(r);
  }

  [[noreturn]] void refuse(std::size_t r, int step) const {
    const std::string action = to_text(schedule_.rows[r][next_[r]]);
    throw ScheduleError("rank " + std::to_string(r) + ", step " + std::to_string(next_[r]) + ": " + action +
                            ": no rank can go on after " + std::to_string(step) +
                            " simulated steps, where a RECV waits for its SEND: run check to see why",
                        RankId(r), static_cast<int>(next_[r]), action);
  }

  const Schedule& schedule_;
  const Placement& placement_;
  bool communicates_;
  StageMicrobatchTable<std::uint8_t> past_;
  std::vector<std::size_t> next_;
  std::vector<int> acted_in_;
  RankSet awake_;
  std::vector<Action> unseen_;  // computes of this step, without communication
};

}  // namespace

StepTimes simulate_steps(const Schedule& schedule) {
  require_sound(schedule);
  StepTimes times;
  for (const Row& row : schedule.rows) times.step_of.emplace_back(row.size(), -1);
  times.steps =
      StepReplay(schedule).run([&](std::size_t rank, std::size_t slot, int step) { times.step_of[rank][slot] = step; });
  return times;
}

int count_steps(const Schedule& schedule) {
  require_sound(schedule);
  return StepReplay(schedule).run([](std::size_t, std::size_t, int) {});
}

bool is_timetable(const Schedule& schedule) {
  // The rows of a lowered schedule have different numbers of messages, so their slots are not a common clock.
  if (schedule.is_lowered() || !verify(schedule).ok()) return false;
  const auto slots = compute_slots(schedule);
  for (int s = 0; s + 1 < schedule.stages(); ++s) {
    for (int m = 0; m < schedule.microbatches; ++m) {
      const ComputeSlots before = slots(StageId(s), MicrobatchId(m));
      const ComputeSlots after = slots(StageId(s + 1), MicrobatchId(m));
      if (before.forward >= after.forward) return false;
      const bool trains = before.backward > 0;  // slot 0 can hold no backward
      if (trains && after.backward >= before.backward) return false;
    }
  }
  return true;
}

Schedule spread_over_steps(const Schedule& schedule, const StepTimes& times) {
  Schedule spread{schedule.name, schedule.placement, schedule.microbatches, {}};
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    Row& row = spread.rows.emplace_back();
    for (std::size_t i = 0; i < schedule.rows[r].size(); ++i) {
      const std::int32_t step = times.step_of[r][i];
      if (step < 0) continue;
      row.resize(static_cast<std::size_t>(step));
      row.push_back(schedule.rows[r][i]);
    }
  }
  return spread;
}

}  // namespace stagecraft
