#pragma once

#include <functional>

#include "stagecraft/runtime/world.h"

namespace stagecraft {

/// Runs `work` on all ranks of the world, to its end on all or on none: a failure on one ends the waiting of the
/// others. The rank that failed throws its own error, the others AbortedError with the same message. `on_failure` is
/// called where the work has failed, when the others know of it and before they are waited for: nothing of the rank may
/// send or receive any more when it returns.
void together(World& world, const std::function<void()>& work, const std::function<void()>& on_failure = {});

}  // namespace stagecraft
