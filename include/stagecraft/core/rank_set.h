#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagecraft {

/// A bit set of ranks that can be iterated in ascending order while it changes.
class RankSet {
 public:
  static constexpr std::size_t npos = SIZE_MAX;

  explicit RankSet(std::size_t ranks) : words_((ranks + 63) / 64) {}

  void insert(std::size_t rank) { words_[rank / 64] |= bit(rank); }
  void erase(std::size_t rank) { words_[rank / 64] &= ~bit(rank); }
  [[nodiscard]] bool contains(std::size_t rank) const { return (words_[rank / 64] & bit(rank)) != 0; }

  /// The smallest member >= rank, or npos.
  [[nodiscard]] std::size_t next(std::size_t rank) const {
    std::size_t word = rank / 64;
    if (word >= words_.size()) return npos;
    std::uint64_t left = words_[word] & (~std::uint64_t{0} << rank % 64);
    while (left == 0) {
      if (++word == words_.size()) return npos;
      left = words_[word];
    }
    return word * 64 + static_cast<std::size_t>(std::countr_zero(left));
  }

 private:
  static std::uint64_t bit(std::size_t rank) { return std::uint64_t{1} << rank % 64; }

  std::vector<std::uint64_t> words_;
};

}  // namespace stagecraft
