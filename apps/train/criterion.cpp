#include "criterion.h"

#include <ATen/ATen.h>

#include "stagecraft/core/error.h"
#include "stagecraft/stage/tensor_spec.h"

namespace stagecraft::train {
namespace {

std::string shape(const at::Tensor& tensor) { return TensorSpec::of(tensor).text(); }

/// Classes are along dimension 1, or along the last of two.
struct ByClass {
  at::Tensor scores;
  at::Tensor targets;
};

ByClass by_class(const at::Tensor& output, const at::Tensor& targets, std::int64_t dimension) {
  const bool are_shares = targets.is_floating_point();
  std::vector<std::int64_t> expected = output.sizes().vec();
  if (!are_shares) expected.erase(expected.begin() + dimension);
  if (targets.sizes() != at::IntArrayRef(expected)) {
    throw InvalidArgument("the loss takes targets of the other dimensions than that of the classes, " +
                          std::to_string(dimension) + ": the output is " + shape(output) + ", the target " +
                          shape(targets));
  }
  const at::Tensor own = are_shares ? targets.to(output.scalar_type()) : targets.to(at::kLong);
  if (dimension == output.dim() - 1) {
    return {output.flatten(0, -2), are_shares ? own.flatten(0, -2) : own.flatten()};
  }
  return {output.movedim(dimension, 1), are_shares ? own.movedim(dimension, 1) : own};
}

at::Tensor class_loss(Criterion criterion, const at::Tensor& output, const at::Tensor& targets,
                      const CriterionOptions& options, at::Reduction::Reduction reduction) {
  const std::int64_t dimension =
      options.class_dimension < 0 ? options.class_dimension + output.dim() : options.class_dimension;
  const ByClass own = by_class(output, targets, dimension);
  if (criterion == Criterion::kNll) return at::nll_loss_nd(own.scores, own.targets, {}, reduction, kIgnored);
  return at::cross_entropy_loss(own.scores, own.targets, {}, reduction, kIgnored, options.label_smoothing);
}

}  // namespace

at::Tensor mean_loss(Criterion criterion, const at::Tensor& output, const at::Tensor& targets,
                     const CriterionOptions& options) {
  if (takes_classes(criterion)) return class_loss(criterion, output, targets, options, at::Reduction::Mean);
  if (targets.sizes() != output.sizes()) {
    throw InvalidArgument("the loss takes a target of the shape of the output: the output is " + shape(output) +
                          ", the target " + shape(targets));
  }
  const at::Tensor own = targets.to(output.scalar_type());
  switch (criterion) {
    case Criterion::kMse:
      return at::mse_loss(output, own);
    case Criterion::kL1:
      return at::l1_loss(output, own);
    case Criterion::kHuber:
      return at::huber_loss(output, own);
    case Criterion::kBce:
      return at::binary_cross_entropy(output, own);
    case Criterion::kBceLogits:
      return at::binary_cross_entropy_with_logits(output, own);
    case Criterion::kKl:
      return at::kl_div(output, own, at::Reduction::Sum) / static_cast<double>(output.size(options.row_dimension));
    default:
      throw InternalError("a loss of another kind than those of output and target");
  }
}

at::Tensor summed_loss(Criterion criterion, const at::Tensor& output, const at::Tensor& targets,
                       const CriterionOptions& options) {
  return class_loss(criterion, output, targets, options, at::Reduction::Sum);
}

}  // namespace stagecraft::train
