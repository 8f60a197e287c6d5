#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "options.h"
#include "stagecraft/runtime/pipeline.h"

namespace stagecraft::train {

/// The range of classes among the targets of a step. Checked on the CPU, because a class that the output does not have
/// crashes a GPU kernel.
struct Classes {
  std::int64_t least = 0;
  std::int64_t most = 0;

  /// The classes of targets on the CPU; 0 to 0 for targets that are not integers.
  static Classes of(const at::Tensor& target);
};

/// What the loss function and the training loop tell each other.
struct BatchFacts {
  /// The classes that occur in the current batch.
  Classes classes;
  /// How many classes the output has; 0 before the first loss.
  std::int64_t outputs = 0;
};

/// Throws InvalidArgument when a target is of a class that the output does not have. The loss function calls it; a step
/// that is replayed as a graph does not call that.
void require_classes(const BatchFacts& facts);

/// The name of the loss keyword with the weight of a batch among those that are accumulated for one update.
inline constexpr std::string_view kShare = "share";

/// The loss of the options, computed on the output of the options, times the share of the batch, if it is given.
LossFunction objective(const Options& options, std::shared_ptr<BatchFacts> facts);

/// The loss of a step; none if no target of it counts.
std::optional<double> counted_loss(const StepResult& result);

/// How much a batch counts in a mean over several batches: its targets that are not ignored, or its rows.
double weight_of(const Options& options, const at::Tensor& targets);

}  // namespace stagecraft::train
