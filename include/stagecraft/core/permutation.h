#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "stagecraft/core/random.h"

namespace stagecraft {

/// A random permutation of 0 ... size - 1 that is computed for one index at a time, so that an order of 10^9 rows takes
/// no memory. The same on every platform.
///
/// A Feistel network permutes the numbers of 2 * half bits, at most four times as many as there are indices: a round
/// replaces (left, right) by (right, left ^ f(right)), which can be undone whatever f is. A number outside the range is
/// permuted again until it is inside; since the numbers form cycles, that stays a permutation.
class Permutation {
 public:
  /// `size` is at least 1.
  Permutation(std::uint64_t size, std::uint64_t key)
      : size_(size), half_(half_bits(size)), mask_((std::uint64_t{1} << half_) - 1) {
    Random random;
    random.seed(key);
    for (std::uint64_t& round : rounds_) round = random.next();
  }

  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Where `index`, which is below `size`, goes.
  [[nodiscard]] std::uint64_t operator()(std::uint64_t index) const {
    do index = permuted(index);
    while (index >= size_);
    return index;
  }

 private:
  static constexpr std::size_t kRounds = 8;

  static int half_bits(std::uint64_t size) {
    const auto bits = static_cast<int>(std::bit_width(size - 1));
    return std::max(1, (bits + 1) / 2);
  }

  [[nodiscard]] std::uint64_t permuted(std::uint64_t number) const {
    std::uint64_t left = number >> half_;
    std::uint64_t right = number & mask_;
    for (const std::uint64_t round : rounds_) {
      Random mixer;
      mixer.seed(round + right);
      left ^= mixer.next() & mask_;
      std::swap(left, right);
    }
    return left << half_ | right;
  }

  std::uint64_t size_;
  int half_;
  std::uint64_t mask_;
  std::array<std::uint64_t, kRounds> rounds_{};
};

}  // namespace stagecraft
