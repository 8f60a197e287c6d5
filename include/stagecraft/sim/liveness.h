#pragma once

#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Per rank, the largest number of live microbatch-stage activations. An activation is live from its F to its B or W;
/// in a row without backwards, only during its F. The count depends only on the order of the rank's own row.
std::vector<int> peak_live_activations(const Schedule& schedule);

}  // namespace stagecraft
