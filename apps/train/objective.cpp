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

constexpr std::int64_t kIgnored = -100;  // as in Python: such a target is ignored

at::Tensor cross_entropy(const at::Tensor& scores, const at::Tensor& target, const Classes& classes) {
  if (target.sizes() !=
          scores.sizes().slice(0, static_cast<std::size_t>(std::max<std::int64_t>(0, scores.dim() - 1))) ||
      !at::isIntegralType(target.scalar_type(), false)) {
    throw InvalidArgument(
        "cross_entropy takes classes along the last dimension of the output and integer targets of the other "
        "dimensions: the output is " +
        shape(scores) + ", the target " + shape(target));
  }
  if (classes.most >= scores.size(-1) || classes.least < 0) {
    throw InvalidArgument("there is a target of class " +
                          std::to_string(classes.least < 0 ? classes.least : classes.most) + ", but the output has " +
                          std::to_string(scores.size(-1)) + " classes: they count from 0, and -100 does not count");
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

Classes Classes::of(const at::Tensor& target) {
  if (!at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) return {};
  const at::Tensor counted = target.masked_select(target != kIgnored);
  if (counted.numel() == 0) return {};
  return {counted.min().item<std::int64_t>(), counted.max().item<std::int64_t>()};
}

LossFunction objective(const Options& options, std::shared_ptr<const BatchFacts> facts) {
  return [is_classes = options.loss == "cross_entropy", name = options.output, facts = std::move(facts)](
             const Value& output, const Value& target, const ValueDict&) {
    const at::Tensor& own = chosen(output, name);
    const at::Tensor loss =
        is_classes ? cross_entropy(own, target.tensor(), facts->classes) : mean_square(own, target.tensor());
    return facts->share == 1 ? loss : loss * facts->share;
  };
}

std::optional<double> counted_loss(const StepResult& result) {
  for (const double weight : result.weights) {
    if (weight != 0) return result.loss();
  }
  return std::nullopt;
}

double weight_of(const Options& options, const at::Tensor& targets) {
  if (options.loss != "cross_entropy") return static_cast<double>(targets.size(0));
  return (targets != kIgnored).sum().item<double>();
}

}  // namespace stagecraft::train
