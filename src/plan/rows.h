#pragma once

#include <functional>

#include "problem.h"

/// Schedules that the planner starts from and ends with.
namespace stagecraft::detail {

Schedule to_schedule(const Placement& placement, int microbatches, const std::vector<StepRow>& rows);

/// Calls `visit` with what each generator makes for that placement, under the generator's name, until it returns false.
void for_each_known_schedule(const Placement& placement, int microbatches,
                             const std::function<bool(const Schedule&)>& visit);

/// Each microbatch passes all stages and comes back before the next one starts: nothing needs less memory.
Schedule one_at_a_time(const Placement& placement, int microbatches);

}  // namespace stagecraft::detail
