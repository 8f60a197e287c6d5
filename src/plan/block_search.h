#pragma once

#include "search.h"
#include "stagecraft/core/random.h"

namespace stagecraft::detail {

/// Hill climbing over building blocks, with restarts.
class BlockSearch {
 public:
  BlockSearch(const Problem& problem, std::uint64_t seed);

  /// Dispatches about that many parts, fewer once it has reached the lower bound.
  void run(Dispatcher& dispatcher, double parts, double lower_bound, const std::function<bool()>& cancelled);

  [[nodiscard]] const Candidate& best() const { return best_; }
  [[nodiscard]] const Block& best_block() const { return best_block_; }
  [[nodiscard]] std::int64_t trials() const { return trials_; }

 private:
  double value_of(Dispatcher& dispatcher, const Block& block, double cutoff);

  const Problem& problem_;
  Random random_;
  Candidate best_;
  Block best_block_;
  std::int64_t trials_ = 0;
};

}  // namespace stagecraft::detail
