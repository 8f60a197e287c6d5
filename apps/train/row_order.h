#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "stagecraft/core/permutation.h"

namespace stagecraft::train {

/// The order in which a run takes rows: epoch after epoch without end, each with every row once, shuffled anew. A row's
/// place in it is its position. It depends only on the arguments of the constructor and takes no memory, so a run can
/// go on from any position, with batches of any size.
class RowOrder {
 public:
  /// `rows` is at least 1.
  RowOrder(std::int64_t rows, bool shuffles, std::uint64_t seed) : rows_(rows), shuffles_(shuffles), seed_(seed) {}

  [[nodiscard]] std::int64_t rows_per_epoch() const { return rows_; }
  /// "shuffled by seed 7", or "in order".
  [[nodiscard]] std::string text() const {
    return shuffles_ ? "shuffled by seed " + std::to_string(seed_) : std::string("in order");
  }

  /// The rows at `count` positions from `position` on.
  [[nodiscard]] std::vector<std::int64_t> rows(std::int64_t position, std::int64_t count) const {
    std::vector<std::int64_t> rows;
    while (count > 0) {
      const std::int64_t from = position % rows_;
      const std::int64_t some = std::min(count, rows_ - from);  // to the end of the epoch
      const Permutation order(static_cast<std::uint64_t>(rows_), key(position / rows_));
      for (std::int64_t i = from; i < from + some; ++i) {
        rows.push_back(shuffles_ ? static_cast<std::int64_t>(order(static_cast<std::uint64_t>(i))) : i);
      }
      position += some;
      count -= some;
    }
    return rows;
  }

 private:
  [[nodiscard]] std::uint64_t key(std::int64_t epoch) const {
    Random random;
    random.seed(seed_);
    return random.next() + static_cast<std::uint64_t>(epoch);
  }

  std::int64_t rows_;
  bool shuffles_;
  std::uint64_t seed_;
};

}  // namespace stagecraft::train
