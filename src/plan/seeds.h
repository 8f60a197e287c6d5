#pragma once

#include "policy.h"
#include "stagecraft/sim/simulator.h"

/// Where the search starts.
namespace stagecraft::detail {

/// Due times from a schedule of the same placement and number of microbatches, simulated with times kept. A full
/// backward counts as I and W.
Policy policy_from(const Problem& problem, const Schedule& schedule, const Simulation& simulation);

/// The policy, kept more or less strictly.
void add_variants(std::vector<Policy>& seeds, const Problem& problem, const Policy& policy);

/// Policies for more microbatches: beginning and end as they were, and the middle repeated, from several points on.
/// Which point is right depends on how many microbatches are under way; the others make poor schedules.
void add_extended(std::vector<Policy>& seeds, const Policy& policy, const Problem& from, const Problem& to);

}  // namespace stagecraft::detail
