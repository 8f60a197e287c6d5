#pragma once

#include <c10/util/Exception.h>

/// LibTorch's warnings on a rank's thread.
namespace stagecraft {

/// A handler for c10::WarningUtils that prints a warning as LibTorch would, but in one line and at most once per
/// process, whichever rank gives it. LibTorch appends stack frames to some warnings and repeats them at every call.
/// Lives as long as the process; thread-safe.
c10::WarningHandler& brief_warnings();

}  // namespace stagecraft
