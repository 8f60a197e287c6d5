#include "stagecraft/sim/memory_model.h"

#include <algorithm>

#include "stagecraft/passes/pass.h"

namespace stagecraft {

MemoryParts resident_memory(const Costs& costs, const Placement& placement, RankId rank) {
  const bool sharded = costs.shard != Shard::kNone;
  const double parts = sharded ? costs.replicas : 1;
  MemoryParts resident;
  for (const StageId stage : placement.stages_of(rank)) {
    const StageCosts& own = costs.of(stage);
    const bool has_masters = sharded || own.master_memory > 0;
    const double masters = own.master_memory > 0 ? own.master_memory : own.parameter_memory;
    if (has_masters) resident.parameters += masters / parts;
    if (costs.shard != Shard::kParameters) resident.parameters += own.parameter_memory;
    resident.optimizer += own.optimizer_memory / parts;
  }
  return resident;
}

MemoryParts most_other_memory(const Costs& costs, const Placement& placement, RankId rank) {
  MemoryParts most = resident_memory(costs, placement, rank);
  std::vector<double> parameters;
  double result = 0;  // of a reduction
  for (const StageId stage : placement.stages_of(rank)) {
    most.gradients += costs.of(stage).gradient_memory;
    result = std::max(result, costs.of(stage).gradient_memory / costs.replicas);
    parameters.push_back(costs.of(stage).parameter_memory);
  }
  if (costs.shard != Shard::kNone) most.gradients += result;
  if (costs.shard != Shard::kParameters) return most;
  // An overlap may have one stage more than the pass makes whole at a time.
  std::sort(parameters.rbegin(), parameters.rend());
  parameters.resize(std::min<std::size_t>(parameters.size(), kShardedMaxActive + 1));
  for (const double one : parameters) most.parameters += one;
  return most;
}

}  // namespace stagecraft
