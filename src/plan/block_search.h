#pragma once

#include "search.h"
#include "stagecraft/core/random.h"

namespace stagecraft::detail {

/// Hill climbing over building blocks, with restarts.
class BlockSearch {
 public:
  /// Looks for a block for that many more microbatches than the problem has.
  BlockSearch(const Problem& problem, int more, std::uint64_t seed);

  /// Dispatches about that many parts, fewer once it has reached the lower bound.
  void run(Dispatcher& dispatcher, double parts, double lower_bound, const std::function<bool()>& cancelled);

  [[nodiscard]] const Candidate& best() const { return best_; }
  [[nodiscard]] const Block& best_block() const { return best_block_; }
  [[nodiscard]] std::int64_t trials() const { return trials_; }

 private:
  double draw(Dispatcher& dispatcher, Block& block, const std::function<bool()>& cancelled);
  double value_of(Dispatcher& dispatcher, const Block& block, double cutoff);

  const Problem& problem_;
  int more_;
  Random random_;
  double best_value_ = std::numeric_limits<double>::infinity();
  Candidate best_;
  Block best_block_;
  std::int64_t trials_ = 0;
};

}  // namespace stagecraft::detail
