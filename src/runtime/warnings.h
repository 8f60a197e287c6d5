#pragma once

#include <c10/util/Exception.h>

/// LibTorch's warnings on a rank's thread.
namespace stagecraft {

/// The handler for c10::WarningUtils: prints a warning as LibTorch would, in one line, and the same one at most once in
/// the process, whichever rank gives it. LibTorch appends stack frames to some and repeats them at every call. Lives as
/// long as the process; any number of threads may use it.
c10::WarningHandler& brief_warnings();

}  // namespace stagecraft
