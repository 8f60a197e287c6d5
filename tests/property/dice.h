#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace stagecraft::property {

/// Choices that follow from a seed alone, the same with every standard library (unlike std::uniform_int_distribution),
/// so that a seed in a failure report repeats the failure anywhere.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}

  /// In [0, count).
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(engine_() % count); }
  bool chance(int percent) { return below(100) < static_cast<std::size_t>(percent); }
  template <typename Value>
  const Value& one_of(const std::vector<Value>& values) {
    return values[below(values.size())];
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace stagecraft::property
