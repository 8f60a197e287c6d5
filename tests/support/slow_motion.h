#pragma once

#include <chrono>
#include <cstdlib>
#include <string>

namespace stagecraft {

/// How long `time` is in a test that measures it: undisturbed.py makes all times of a test longer when it tries again
/// on a machine that others disturb.
inline std::chrono::milliseconds slowly(std::chrono::milliseconds time) {
  const char* times = std::getenv("STAGECRAFT_TEST_TIMES_SLOWER");
  return time * (times == nullptr ? 1 : std::atoi(times));
}

inline double in_seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }
inline std::string in_ms(std::chrono::milliseconds time) { return std::to_string(time.count()) + " ms"; }

}  // namespace stagecraft
