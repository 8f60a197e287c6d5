#pragma once

#include <functional>

#include "search.h"
#include "stagecraft/sim/simulator.h"

/// What the search starts from: known schedules, and policies and families made of them.
namespace stagecraft::detail {

/// Calls `visit` with the schedule of each generator for that placement, until `visit` returns false. Leaves out
/// ForwardOnly.
void for_each_known_schedule(const Placement& placement, int microbatches,
                             const std::function<bool(const Schedule&)>& visit);

/// The schedule with the least memory: each microbatch runs through all stages and back before the next one starts.
Schedule one_at_a_time(const Placement& placement, int microbatches);

/// Due times from the start times of a schedule with the same placement and number of microbatches. The simulation
/// needs `keep_times`. A full backward counts as I and W.
Policy policy_from(const Problem& problem, const Schedule& schedule, const Simulation& simulation);

/// 24 variants of a policy, which follow its due times more or less strictly.
Family variants_of(const Problem& problem, const Policy& policy);

/// The family of one block. Keeps a reference to the problem.
Family family_of(const Problem& problem, const Block& block);

/// The time between consecutive microbatches in the middle of the step. With little memory, it is longer than the work
/// of one microbatch.
double interval_of(const std::array<std::vector<double>, 3>& times, const Problem& problem);

/// A number of microbatches that is enough to show warm-up, cool-down and how the middle repeats; more only repeat the
/// middle. Depends on how many microbatches memory holds in flight; at most 3 per rank.
int enough_microbatches(const Problem& problem);

/// Policies for more microbatches that keep beginning and end and repeat the middle, one per point to repeat from. The
/// right point depends on how many microbatches are in flight; the others give poor schedules. Both problems must
/// outlive the family.
Family extensions_of(const Policy& policy, const Problem& from, const Problem& to);

}  // namespace stagecraft::detail
