#pragma once

#include <functional>

#include "stagecraft/runtime/world.h"

namespace stagecraft {

/// Runs `work` on all ranks of the world, and returns when it has succeeded on all. A failure on one rank ends the
/// waits of the others: the rank that failed throws its own error, the others AbortedError with the same message.
/// `on_failure` is called on a rank whose work has failed, after the others are told and before they are waited for;
/// when it returns, no thread of the rank may send or receive any more.
void together(World& world, const std::function<void()>& work, const std::function<void()>& on_failure = {});

}  // namespace stagecraft
