#include "objective.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

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

at::Tensor cross_entropy(const at::Tensor& scores, const at::Tensor& target, BatchFacts& facts) {
  if (target.sizes() !=
          scores.sizes().slice(0, static_cast<std::size_t>(std::max<std::int64_t>(0, scores.dim() - 1))) ||
      !at::isIntegralType(target.scalar_type(), false)) {
    throw InvalidArgument(
        "cross_entropy takes classes along the last dimension of the output and integer targets of the other "
        "dimensions: the output is " +
        shape(scores) + ", the target " + shape(target));
  }
  facts.outputs = scores.size(-1);
  require_classes(facts);
  return at::cross_entropy_loss(scores.flatten(0, -2), target.flatten().to(at::kLong));
}

at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target) {
  if (target.sizes() != output.sizes()) {
    throw InvalidArgument("mse takes a target of the shape of the output: the output is " + shape(output) +
                          ", the target " + shape(target));
  }
  return at::mse_loss(output, target.to(output.scalar_type()));
}

/// The bits of a product with a number, but a graph that is replayed multiplies by what the tensor holds then.
at::Tensor times(const at::Tensor& loss, const at::Tensor& share) {
  const at::ScalarType type = at::toOpMathType(loss.scalar_type());
  return (loss.to(type) * share.to(type)).to(loss.scalar_type());
}

}  // namespace

void require_classes(const BatchFacts& facts) {
  const Classes& classes = facts.classes;
  if (classes.most < facts.outputs && classes.least >= 0) return;
  throw InvalidArgument("there is a target of class " +
                        std::to_string(classes.least < 0 ? classes.least : classes.most) + ", but the output has " +
                        std::to_string(facts.outputs) + " classes: they count from 0, and -100 does not count");
}

Classes Classes::of(const at::Tensor& target) {
  if (!at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) return {};
  const at::Tensor counted = target.masked_select(target != kIgnored);
  if (counted.numel() == 0) return {};
  return {counted.min().item<std::int64_t>(), counted.max().item<std::int64_t>()};
}

LossFunction objective(const Options& options, std::shared_ptr<BatchFacts> facts) {
  return [is_classes = options.loss == "cross_entropy", name = options.output, facts = std::move(facts)](
             const Value& output, const Value& target, const ValueDict& keywords) {
    const at::Tensor& own = chosen(output, name);
    const at::Tensor loss =
        is_classes ? cross_entropy(own, target.tensor(), *facts) : mean_square(own, target.tensor());
    for (const auto& [key, value] : keywords) {
      if (key == kShare) return times(loss, value.tensor());
    }
    return loss;
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
