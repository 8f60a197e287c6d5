#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

/// A number in JSON, which has no NaN and no infinity.
inline std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

/// The losses of a run in bounded memory: when there are too many, every second one is dropped.
class LossCurve {
 public:
  void add(std::int64_t step, double loss) {
    if (step % stride_ != 0 && !points_.empty()) return;
    points_.emplace_back(step, loss);
    if (points_.size() < kMost) return;
    stride_ *= 2;
    std::erase_if(points_, [&](const auto& point) { return point.first % stride_ != 0; });
  }

  /// [[step, loss], ...]
  [[nodiscard]] std::string json() const {
    std::string text = "[";
    for (const auto& [step, loss] : points_) {
      text += (text.size() > 1 ? ",[" : "[") + std::to_string(step) + "," + json_number(loss) + "]";
    }
    return text + "]";
  }

 private:
  static constexpr std::size_t kMost = 1000;
  std::int64_t stride_ = 1;
  std::vector<std::pair<std::int64_t, double>> points_;
};

}  // namespace stagecraft
