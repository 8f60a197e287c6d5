#pragma once

#include <memory>
#include <optional>

#include "options.h"
#include "stagecraft/runtime/pipeline.h"

namespace stagecraft::train {

/// The range of classes among the targets of a step. Checked on the CPU before the loss is computed, because a class
/// that the output does not have crashes a GPU kernel.
struct Classes {
  std::int64_t least = 0;
  std::int64_t most = 0;

  /// The classes of targets on the CPU; 0 to 0 for targets that are not integers.
  static Classes of(const at::Tensor& target);
};

/// What the loss function knows of the current batch besides its targets.
struct BatchFacts {
  Classes classes;
  /// The weight of this batch among those that are accumulated for one update.
  double share = 1;
};

/// The loss of the options, computed on the output of the options, times the share of the batch.
LossFunction objective(const Options& options, std::shared_ptr<const BatchFacts> facts);

/// The loss of a step; none if no target of it counts.
std::optional<double> counted_loss(const StepResult& result);

/// How much a batch counts in a mean over several batches: its targets that are not ignored, or its rows.
double weight_of(const Options& options, const at::Tensor& targets);

}  // namespace stagecraft::train
