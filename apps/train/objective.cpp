#include "objective.h"

#include <ATen/ATen.h>

#include "stagecraft/core/error.h"

namespace stagecraft::train {
namespace {

const at::Tensor& chosen(const Value& output, const std::string& name) {
  if (!name.empty()) return output.at(name).tensor();
  if (output.is_tensor()) return output.tensor();
  if (output.is_dict()) {
    for (const auto& [key, value] : output.dict()) {
      if (key == "logits") return value.tensor();
    }
    if (!output.dict().empty()) return output.dict().front().second.tensor();
  }
  if (output.is_list() && !output.list().empty()) return output.list().front().tensor();
  throw InvalidArgument("the model has no output that is a tensor: name one with --output");
}

std::string shape(const at::Tensor& tensor) { return TensorSpec::of(tensor).text(); }

at::Tensor cross_entropy(const at::Tensor& scores, const at::Tensor& target) {
  if (target.sizes() !=
          scores.sizes().slice(0, static_cast<std::size_t>(std::max<std::int64_t>(0, scores.dim() - 1))) ||
      !at::isIntegralType(target.scalar_type(), false)) {
    throw InvalidArgument(
        "cross_entropy takes classes along the last dimension of the output and integer targets of the other "
        "dimensions: the output is " +
        shape(scores) + ", the target " + shape(target));
  }
  return at::cross_entropy_loss(scores.flatten(0, -2), target.flatten().to(at::kLong));
}

at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target) {
  if (target.sizes() != output.sizes()) {
    throw InvalidArgument("mse takes a target of the shape of the output: the output is " + shape(output) +
                          ", the target " + shape(target));
  }
  return at::mse_loss(output, target.to(output.scalar_type()));
}

}  // namespace

LossFunction objective(const Options& options) {
  return [classes = options.loss == "cross_entropy", name = options.output](const Value& output, const Value& target,
                                                                            const ValueDict&) {
    const at::Tensor& own = chosen(output, name);
    return classes ? cross_entropy(own, target.tensor()) : mean_square(own, target.tensor());
  };
}

}  // namespace stagecraft::train
