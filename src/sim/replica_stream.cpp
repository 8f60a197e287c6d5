#include "replica_stream.h"

#include <algorithm>

namespace stagecraft::detail {

ReplicaStream::ReplicaStream(const Costs& costs, const Placement& placement, RankId rank)
    : costs_(costs), placement_(placement), rank_(rank), states_(placement.stages_of(rank).size()) {}

/// All-gather and reduce-scatter move (R - 1) / R of the memory through every replica, an all-reduce is both.
double ReplicaStream::transfer(double memory, double given, double passes) const {
  if (given > 0) return given;
  const LinkCosts& link = costs_.replica_link;
  const double moved = memory * (costs_.replicas - 1) / costs_.replicas;
  return passes * (link.latency + (link.bandwidth > 0 ? moved / link.bandwidth : 0));
}

ActionTime ReplicaStream::communicate(double now, double time) {
  const double start = std::max(free_, now);
  free_ = start + time;
  communication_ += time;
  return {start, free_};
}

ActionTime ReplicaStream::unshard(StageId stage, double now, std::size_t slot, double factor) {
  StageState& own = state(stage);
  if (costs_.shard == Shard::kNone || !own.is_stale) return {now, now};
  const StageCosts& stage_costs = costs_.of(stage);
  const ActionTime time = communicate(now, factor * transfer(stage_costs.parameter_memory, stage_costs.unshard, 1));
  own.is_stale = false;
  own.ready = time.end;
  // The memory is there from the beginning, the buffers only while something travels.
  if (costs_.shard == Shard::kParameters) {
    in_slots_.push_back({slot, {now, stage_costs.parameter_memory, &MemoryParts::parameters}});
  }
  beside_.push_back({time.start, stage_costs.unshard_memory, &MemoryParts::parameters});
  beside_.push_back({time.end, -stage_costs.unshard_memory, &MemoryParts::parameters});
  return time;
}

double ReplicaStream::reshard(StageId stage, double now, std::size_t slot) {
  StageState& own = state(stage);
  if (costs_.shard != Shard::kParameters || own.is_stale) return now;
  exposed_ += std::max(0.0, own.ready - now);
  now = std::max(now, own.ready);
  own.is_stale = true;
  in_slots_.push_back({slot, {now, -costs_.of(stage).parameter_memory, &MemoryParts::parameters}});
  return now;
}

ActionTime ReplicaStream::reduce(StageId stage, double now, double factor) {
  const StageCosts& stage_costs = costs_.of(stage);
  const bool sharded = costs_.shard != Shard::kNone;
  const ActionTime time =
      communicate(now, factor * transfer(stage_costs.gradient_memory, stage_costs.reduce_grad, sharded ? 1 : 2));
  state(stage).is_reduced = true;
  if (!sharded) return time;
  const double whole = stage_costs.gradient_memory;
  beside_.push_back({time.start, whole / costs_.replicas + stage_costs.reduce_memory, &MemoryParts::gradients});
  beside_.push_back({time.end, -whole - stage_costs.reduce_memory, &MemoryParts::gradients});
  return time;
}

double ReplicaStream::whole_at(StageId stage, double now, std::size_t slot, double factor) {
  if (costs_.shard == Shard::kNone) return now;
  if (state(stage).is_stale) unshard(stage, now, slot, factor);
  return state(stage).ready;
}

double ReplicaStream::finish(double now, bool training) {
  for (const StageId stage : placement_.stages_of(rank_)) {
    if (training && !state(stage).is_reduced) reduce(stage, now, 1);
  }
  exposed_ += std::max(0.0, free_ - now);
  return std::max(now, free_);
}

}  // namespace stagecraft::detail
