#pragma once

#include <functional>

#include "problem.h"

/// Schedules that the planner starts from, and the conversion of its rows to a schedule.
namespace stagecraft::detail {

Schedule to_schedule(const Placement& placement, int microbatches, const std::vector<StepRow>& rows);

/// Calls `visit` with the schedule of each generator for that placement, until `visit` returns false. Leaves out
/// ForwardOnly.
void for_each_known_schedule(const Placement& placement, int microbatches,
                             const std::function<bool(const Schedule&)>& visit);

/// The schedule with the least memory: each microbatch runs through all stages and back before the next one starts.
Schedule one_at_a_time(const Placement& placement, int microbatches);

}  // namespace stagecraft::detail
