#pragma once

#include <functional>

#include "stagecraft/runtime/world.h"

namespace stagecraft {

/// Runs `work` on all ranks of the world, to its end on all or on none: a failure on one ends the waiting of the
/// others. The rank that failed throws its own error, the others AbortedError with the same message.
void together(World& world, const std::function<void()>& work);

}  // namespace stagecraft
