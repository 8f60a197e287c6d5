#pragma once

#include "problem.h"

/// Schedules that the planner starts from and ends with.
namespace stagecraft::detail {

Schedule to_schedule(const Placement& placement, int microbatches, const std::vector<StepRow>& rows);

/// What every generator makes for that placement; the names are those of the generators.
std::vector<Schedule> known_schedules(const Placement& placement, int microbatches);

/// Each microbatch passes all stages and comes back before the next one starts: nothing needs less memory.
Schedule one_at_a_time(const Placement& placement, int microbatches);

}  // namespace stagecraft::detail
