#pragma once

#include "search.h"
#include "stagecraft/core/random.h"

namespace stagecraft::detail {

/// Local search over building blocks at a constant temperature (Metropolis rule), with restarts.
class BlockSearch {
 public:
  /// Searches for a block that is good for `more` microbatches in addition to those of the problem.
  BlockSearch(const Problem& problem, int more, std::uint64_t seed);

  /// Ends after dispatching about `parts` parts, at the lower bound, or when `cancelled`.
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
