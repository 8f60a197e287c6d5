#pragma once

#include "stagecraft/plan/planner.h"

/// Whether a memory limit can be kept at all, and what would help if not.
namespace stagecraft::detail {

/// The peak of the schedule with the least memory, one microbatch at a time. For costs of activations alone: without
/// messages, as `smallest_memory_limit` says.
double least_memory(const Costs& costs, const Placement& placement, int microbatches);

/// Throws InfeasibleLimit, which says how much is missing, and whether sharding or recompute would do.
void check_limit(const PlanRequest& request, const Placement& placement);

/// " shard gradients would need 5.0 GiB, ...": the choices that keep the limit, or that none does.
std::string remedies(const PlanRequest& request, const Placement& placement);

}  // namespace stagecraft::detail
