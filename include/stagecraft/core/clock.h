#pragma once

#include <chrono>

namespace stagecraft {

/// Seconds on a monotonic clock that all threads and processes of a machine share.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace stagecraft
