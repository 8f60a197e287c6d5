#pragma once

#include <string>
#include <vector>

#include "stagecraft/schedule/schedule.h"

/// The schedule that `.schedule = "auto"` starts with.
namespace stagecraft {

/// The placement of these stages. Throws InvalidArgument when a stage is nowhere or on two ranks.
Placement placement_of(const std::vector<std::vector<StageId>>& stages_by_rank);

/// The plain schedule for a placement, with whole backwards: 1F1B, Interleaved1F1B, 1F1B-V, or all forwards and then
/// all backwards. Throws InvalidArgument unless the placement is linear, a loop or a V.
Schedule starting_schedule(const Placement& placement, int microbatches);

}  // namespace stagecraft
