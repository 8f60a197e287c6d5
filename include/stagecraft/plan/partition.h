#pragma once

#include "stagecraft/plan/planner.h"
#include "stagecraft/sim/cost_file.h"

/// Stages from layers, together with their schedule.
namespace stagecraft {

/// Stage s is made of the layers [cuts[s], cuts[s + 1]).
using Cuts = std::vector<int>;

/// The costs of those stages: times and memory are sums; a stage sends what its last layer sends on and what its first
/// layer sends back. What is not of stages is taken from `costs`. Throws InvalidArgument unless the cuts ascend from 0
/// to the number of layers.
Costs costs_of_stages(const std::vector<Layer>& layers, const Cuts& cuts, const Costs& costs);

/// The cuts that make the most loaded rank's work smallest, every stage with at least one layer. Ranks may be unequal.
/// Throws InvalidArgument for fewer layers than stages.
Cuts balanced_cuts(const std::vector<Layer>& layers, const Placement& placement, const Costs& costs);

struct PartitionPlan {
  Cuts cuts;
  Costs costs;  ///< Of the stages.
  PlanResult plan;
};

/// Cuts the layers for the request's placement, starting from balanced cuts, moves single layers between neighbouring
/// stages as long as the planned span shrinks, and plans the best. `request.costs` gives everything but the stages.
PartitionPlan plan_partition(const std::vector<Layer>& layers, const PlanRequest& request);

}  // namespace stagecraft
