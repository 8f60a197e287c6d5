#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

/// Measured times: the clock they are read from, and their median.
namespace stagecraft {

/// Seconds on a monotonic clock that all threads and processes of a machine share.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The median: 0 for an empty list, and the mean of the two middle values for an even count.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace stagecraft
