#pragma once

#include "search.h"
#include "stagecraft/sim/simulator.h"

/// Where the search starts.
namespace stagecraft::detail {

/// Due times from a schedule of the same placement and number of microbatches, simulated with times kept. A full
/// backward counts as I and W.
Policy policy_from(const Problem& problem, const Schedule& schedule, const Simulation& simulation);

/// The policy, kept more or less strictly.
Family variants_of(const Problem& problem, const Policy& policy);

/// The family of one block. Keeps a reference to the problem.
Family family_of(const Problem& problem, const Block& block);

/// At which microbatches follow each other in the middle: with little memory, longer than the work of one.
double interval_of(const std::array<std::vector<double>, 3>& times, const Problem& problem);

/// So many microbatches show all that any number of them would: beginning, end, and how the middle repeats. It depends
/// on how many can be under way at once.
int enough_microbatches(const Problem& problem);

/// Policies for more microbatches: beginning and end as they were, and the middle repeated, from several points on.
/// Which point is right depends on how many microbatches are under way; the others make poor schedules.
/// Both problems must live as long as the family.
Family extensions_of(const Policy& policy, const Problem& from, const Problem& to);

}  // namespace stagecraft::detail
