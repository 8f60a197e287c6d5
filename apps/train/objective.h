#pragma once

#include <memory>

#include "options.h"
#include "stagecraft/runtime/pipeline.h"

namespace stagecraft::train {

/// Classes among the targets of a step. Known on the CPU, before anything computes with them: a GPU does not survive a
/// class that the output does not have.
struct Classes {
  std::int64_t least = 0;
  std::int64_t most = 0;

  /// Of targets on the CPU; none for other targets than integers.
  static Classes of(const at::Tensor& target);
};

/// The loss that the options name, on the output that they name. `classes` is what the targets of the step have.
LossFunction objective(const Options& options, std::shared_ptr<const Classes> classes);

}  // namespace stagecraft::train
