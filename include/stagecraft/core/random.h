#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace stagecraft {

/// SplitMix64 (Steele, Lea, Flood), and normal numbers by Box and Muller: the same numbers from the same seed on every
/// platform, which the distributions of the standard library do not promise.
class Random {
 public:
  /// Neighbouring seeds must not give one sequence shifted by a step, so the state is a number of the seed's sequence.
  void seed(std::uint64_t value) {
    state_ = value;
    state_ = next();
  }

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// In (0, 1).
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1.0p-53; }
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform()); }

 private:
  std::uint64_t state_ = 1;
};

}  // namespace stagecraft
