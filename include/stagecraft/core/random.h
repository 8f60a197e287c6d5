#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace stagecraft {

/// SplitMix64 (Steele, Lea, Flood), and normal numbers by the Box-Muller transform. Gives the same numbers for a seed
/// on every platform, which the distributions of the standard library do not guarantee.
class Random {
 public:
  /// Sets the state to the first number generated from `value`: if the state were `value` itself, two seeds that differ
  /// by the generator's increment would give the same sequence, shifted by one.
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
  /// A uniform random number in (0, 1).
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1.0p-53; }
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform()); }

 private:
  std::uint64_t state_ = 1;
};

}  // namespace stagecraft
