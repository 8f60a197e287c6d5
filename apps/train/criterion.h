#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "loss_text.h"

/// The losses that `train` knows, each of one output and its targets.
namespace stagecraft::train {

/// The class that does not count, as in Python.
inline constexpr std::int64_t kIgnored = -100;

struct CriterionOptions {
  /// Along which dimension of the output the classes are.
  std::int64_t class_dimension = -1;
  double label_smoothing = 0;
  /// Along which dimension of the output the rows are, for a mean over rows.
  std::int64_t row_dimension = 0;
};

/// The mean over what counts in these rows; of `kl`, over rows. Throws InvalidArgument when the shapes do not fit.
at::Tensor mean_loss(Criterion criterion, const at::Tensor& output, const at::Tensor& targets,
                     const CriterionOptions& options);
/// For criteria of classes: the sum instead of the mean.
at::Tensor summed_loss(Criterion criterion, const at::Tensor& output, const at::Tensor& targets,
                       const CriterionOptions& options);

}  // namespace stagecraft::train
