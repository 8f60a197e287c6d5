// Memory of a rank over time when more than activations counts: parameters, gradients, state of the optimizer, and
// stages that compute their activations again.
//
//   parameters    whole, or with Shard::kParameters from UNSHARD to RESHARD; masters, or this replica's part of them
//   gradients     from the stage's first B or W; its REDUCE_GRAD leaves this replica's part
//   activations   F ──────────────── B, or I ──── W        recomputed:  F─┐          ┌B, or I ──── W
//                                                                         └──input───┘

#include <algorithm>

#include "memory.h"
#include "stagecraft/sim/memory_model.h"

namespace stagecraft::detail {
namespace {

class MemoryTimeline {
 public:
  explicit MemoryTimeline(const RankReplay& replay) : replay_(replay), row_(replay.schedule.rows[replay.rank.index()]) {
    own_.reserve(2 * row_.size());
    collect();
  }

  MemoryParts run(std::vector<MemoryPoint>* curve) {
    held_ = resident_memory(replay_.costs, replay_.schedule.placement, replay_.rank);
    MemoryParts peak = held_;
    if (curve != nullptr) curve->push_back({0, held_.total()});
    const auto apply = [&](const MemoryChange& change) {
      if (change.amount == 0) return;
      held_.*change.what += change.amount;
      if (held_.total() > peak.total()) peak = held_;
      if (curve == nullptr) return;
      if (curve->back().time == change.time) {
        curve->back().memory = held_.total();
      } else {
        curve->push_back({change.time, held_.total()});
      }
    };
    // The changes of the compute stream stay in their order, which matters where actions take no time. At equal times,
    // what others free comes before them, and what others take after them.
    auto next = beside_.begin();
    for (const MemoryChange& change : own_) {
      for (; next != beside_.end() && comes_before(*next, change); ++next) apply(*next);
      apply(change);
    }
    for (; next != beside_.end(); ++next) apply(*next);
    return peak;
  }

 private:
  static bool comes_before(const MemoryChange& beside, const MemoryChange& own) {
    return beside.time < own.time || (beside.time == own.time && beside.amount < 0);
  }

  void collect() {
    const bool training = trains(row_);
    const std::vector<ReplicaStream::SlotChange> none;
    const auto& in_slots = replay_.stream != nullptr ? replay_.stream->in_slots() : none;
    if (replay_.stream != nullptr) beside_ = replay_.stream->beside();
    auto in_slot = in_slots.begin();
    std::vector<bool> has_gradient(replay_.schedule.placement.stages_of(replay_.rank).size(), false);
    for (std::size_t i = 0; i < row_.size(); ++i) {
      for (; in_slot != in_slots.end() && in_slot->slot == i; ++in_slot) own_.push_back(in_slot->change);
      if (!is_compute(row_[i].kind())) continue;
      const ActionTime time = replay_.times[i];
      for_each_part(row_[i], [&](const Action& part) {
        take_activations(part, time.start, training);
        take_gradients(part, time.start, has_gradient);
      });
      for_each_part(row_[i], [&](const Action& part) {
        free_activations(part, time.end, training);
        const StageCosts& stage = replay_.costs.of(part.stage());
        if (gives_weight_gradient(part.kind()) && stage.is_mixed()) {
          add(time.end, -stage.parameter_memory, &MemoryParts::gradients);
        }
        free_message(part, time.end);
        hand_back(part, time.end);
      });
    }
    // Stable: a communication that takes no time still takes its buffers before it frees them.
    std::stable_sort(beside_.begin(), beside_.end(),
                     [](const MemoryChange& x, const MemoryChange& y) { return x.time < y.time; });
  }

  void add(double time, double amount, double MemoryParts::*what) {
    if (amount != 0) own_.push_back({time, amount, what});
  }
  void add_activations(double time, double amount) { add(time, amount, &MemoryParts::activations); }

  /// What a stage holds while it computes a microbatch that it drops: at least the input.
  static double all_of(const StageCosts& stage) { return std::max(stage.activation_memory, stage.input_memory); }

  void take_activations(const Action& part, double start, bool training) {
    const StageCosts& stage = replay_.costs.of(part.stage());
    const bool again = training && part.kind() != ActionKind::kBackwardWeight && replay_.recomputed(part);
    const double held = again ? all_of(stage) : stage.activation_memory;
    if (part.kind() == ActionKind::kForward) add_activations(start, held);
    if (!gives_input_gradient(part.kind())) return;
    if (again) add_activations(start, held - stage.input_memory);
    if (part.kind() == ActionKind::kBackwardInput) {
      add_activations(start, std::max(0.0, stage.weight_gradient_memory - held));
    }
  }

  void free_activations(const Action& part, double end, bool training) {
    const StageCosts& stage = replay_.costs.of(part.stage());
    const bool again = training && part.kind() != ActionKind::kBackwardWeight && replay_.recomputed(part);
    const double held = again ? all_of(stage) : stage.activation_memory;
    switch (part.kind()) {
      case ActionKind::kForward:
        if (!training) return add_activations(end, -held);
        if (again) add_activations(end, stage.input_memory - held);
        return;
      case ActionKind::kBackward:
        return add_activations(end, -held);
      case ActionKind::kBackwardInput:
        return add_activations(end, std::min(0.0, stage.weight_gradient_memory - held));
      case ActionKind::kBackwardWeight:
        return add_activations(end, -stage.weight_gradient_memory);
      default:
        return;
    }
  }

  /// Modules of another type than the optimizer make gradients of their own type, which are then added to the sums.
  void take_gradients(const Action& part, double start, std::vector<bool>& has_gradient) {
    if (!gives_weight_gradient(part.kind())) return;
    const StageCosts& stage = replay_.costs.of(part.stage());
    const auto local = static_cast<std::size_t>(replay_.schedule.placement.local_index(part.stage()));
    if (!has_gradient[local]) add(start, stage.gradient_memory, &MemoryParts::gradients);
    has_gradient[local] = true;
    if (stage.is_mixed()) add(start, stage.parameter_memory, &MemoryParts::gradients);
  }

  void free_message(const Action& part, double end) {
    const double buffer = replay_.costs.of(part.stage()).buffer_memory;
    const Action send = message_needed(replay_.schedule.placement, part);
    if (send.is_idle() || buffer == 0) return;
    beside_.push_back({replay_.arrivals.of(send), buffer, &MemoryParts::activations});
    add_activations(end, -buffer);
  }

  /// A gradient for another stage of this rank waits for it without a message. What goes forward is part of the
  /// activations of the stage that made it. Only bytes count: published schedules count messages between ranks.
  void hand_back(const Action& part, double end) {
    if (!replay_.costs.memory_in_bytes || !gives_input_gradient(part.kind())) return;
    const Placement& placement = replay_.schedule.placement;
    const auto is_here = [&](StageId stage) {
      return placement.contains(stage) && placement.rank_of(stage) == replay_.rank;
    };
    if (is_here(part.stage() - 1)) add_activations(end, replay_.costs.of(part.stage() - 1).buffer_memory);
    if (is_here(part.stage() + 1)) add_activations(end, -replay_.costs.of(part.stage()).buffer_memory);
  }

  const RankReplay& replay_;
  const Row& row_;
  std::vector<MemoryChange> own_;     // by the compute stream, in its order
  std::vector<MemoryChange> beside_;  // by messages and by the communication stream
  MemoryParts held_;
};

}  // namespace

MemoryParts replay_all_memory(const RankReplay& replay, std::vector<MemoryPoint>* curve) {
  return MemoryTimeline(replay).run(curve);
}

}  // namespace stagecraft::detail
