#pragma once

#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Runs the rows by their data dependencies alone: each rank runs until an action is not ready, and is retried after
/// `wake(rank)`. `run_action(rank, action)` returns whether the action could run; it may call `wake` for any rank.
/// Running each rank as far as possible accesses memory rank by rank instead of jumping between ranks at every step.
class Dataflow {
 public:
  explicit Dataflow(const Schedule& schedule) : rows_(schedule.rows), next_(schedule.rows.size(), 0) {}

  template <typename RunAction>
  void run(RunAction&& run_action) {
    for (std::size_t r = rows_.size(); r-- > 0;) runnable_.push_back(r);
    while (!runnable_.empty()) {
      const std::size_t r = runnable_.back();
      runnable_.pop_back();
      const Row& row = rows_[r];
      std::size_t i = next_[r];
      while (i < row.size() && run_action(r, row[i])) ++i;
      next_[r] = i;
    }
  }

  void wake(std::size_t rank) {
    // A neighbour that runs on often wakes the same rank several times in a row.
    if (runnable_.empty() || runnable_.back() != rank) runnable_.push_back(rank);
  }

  /// By rank: the slot of its next action, or the size of its row when it has finished.
  [[nodiscard]] const std::vector<std::size_t>& position() const { return next_; }

  /// The first rank that has not finished, or -1.
  [[nodiscard]] int first_blocked() const {
    for (std::size_t r = 0; r < next_.size(); ++r) {
      if (next_[r] < rows_[r].size()) return static_cast<int>(r);
    }
    return -1;
  }

 private:
  const std::vector<Row>& rows_;
  std::vector<std::size_t> next_;
  std::vector<std::size_t> runnable_;
};

}  // namespace stagecraft
