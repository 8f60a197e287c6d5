#pragma once

#include "stagecraft/plan/planner.h"
#include "stagecraft/sim/cost_file.h"

/// Partitioning of layers into stages, together with the plan of their schedule.
namespace stagecraft {

/// Stage s is made of the layers [cuts[s], cuts[s + 1]).
using Cuts = std::vector<int>;

/// The costs of the stages that `cuts` makes. Times and memory are sums over layers; forward bytes are those of the
/// last layer, backward bytes, buffer and input memory those of the first. Everything except `stages` is copied from
/// `costs`. Throws InvalidArgument unless the cuts ascend strictly from 0 to the number of layers, and all layers are
/// computed again or none.
Costs costs_of_stages(const std::vector<Layer>& layers, const Cuts& cuts, const Costs& costs);

/// Cuts that minimise the largest stage, improved by moving single layers while that balances the ranks' work better.
/// Every stage has at least one layer; rank slowdowns count. Throws InvalidArgument for fewer layers than stages, and
/// for too many layers.
Cuts balanced_cuts(const std::vector<Layer>& layers, const Placement& placement, const Costs& costs);

struct PartitionPlan {
  Cuts cuts;
  Costs costs;  ///< Costs of the stages.
  PlanResult plan;
};

/// Local search for the best cuts: starts from balanced cuts and moves single layers between neighbouring stages while
/// the planned span shrinks, then plans the best cuts in full. `request.costs` gives all costs except those of stages.
PartitionPlan plan_partition(const std::vector<Layer>& layers, const PlanRequest& request);

}  // namespace stagecraft
