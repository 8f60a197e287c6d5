#pragma once

#include <memory>

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

/// The loss of the options, computed on the output of the options. `classes`: those of the current step's targets.
LossFunction objective(const Options& options, std::shared_ptr<const Classes> classes);

}  // namespace stagecraft::train
