#pragma once

#include <string>
#include <vector>

#include "stagecraft/schedule/schedule.h"

/// What `.schedule = "auto"` begins with.
namespace stagecraft {

/// From the stages that each rank says it has. Throws InvalidArgument when a stage is nowhere or on two ranks.
Placement placement_of(const std::vector<std::vector<StageId>>& stages_by_rank);

/// The plain one of its placement, with whole backwards: 1F1B, Interleaved1F1B, 1F1B-V, or all forwards and then all
/// backwards. Throws InvalidArgument for a placement that the planner does not know: it must be linear, a loop or a V.
Schedule starting_schedule(const Placement& placement, int microbatches);

}  // namespace stagecraft
