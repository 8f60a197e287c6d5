#pragma once

#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Per rank, the most microbatch-stage activations alive at once. One is alive from its F to its B or W; without a
/// backward (forward-only) just during its F. Depends on each rank's own order alone.
std::vector<int> peak_live_activations(const Schedule& schedule);

}  // namespace stagecraft
