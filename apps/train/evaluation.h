#pragma once

#include <memory>

#include "batches.h"
#include "objective.h"

namespace stagecraft::train {

/// The loss on rows that are not trained on, in evaluation mode.
class Evaluation {
 public:
  /// `rows` are enough for one batch.
  Evaluation(const Options& options, Batches batches, RowRange rows, const Objective& objective)
      : options_(options), batches_(std::move(batches)), rows_(rows), objective_(objective) {}

  /// The mean loss over all whole batches, or over the first so many (--eval-batches), in order. All ranks call it, and
  /// all get it. NaN when no target counts.
  double run(World& world, Pipeline& pipeline);

 private:
  [[nodiscard]] std::int64_t batches(const World& world) const;
  [[nodiscard]] Rows rows_of(const World& world, std::int64_t batch) const;
  [[nodiscard]] at::Tensor scales(World& world, const Pipeline& pipeline) const;

  const Options& options_;
  Batches batches_;
  RowRange rows_;
  const Objective& objective_;
};

/// For each of several batches, what it weighs on all ranks together. `own`: what this rank's part of it weighs. Called
/// by all members of the group.
std::vector<double> weights_of_all(Group& group, const std::vector<double>& own);

}  // namespace stagecraft::train
