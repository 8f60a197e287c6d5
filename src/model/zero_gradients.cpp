#include "zero_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace stagecraft {
namespace {

namespace ag = torch::autograd;

/// Returns its first argument; the others get gradients of zero.
struct WithOperands : ag::Function<WithOperands> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& result, at::TensorList operands) {
    c10::List<at::Tensor> zeros;  // of one element each: the operands themselves need not be kept
    for (const at::Tensor& operand : operands)
      zeros.push_back(at::zeros({}, operand.options()).expand(operand.sizes()));
    context->saved_data["zeros"] = zeros;
    return result.view_as(result);
  }
  static ag::variable_list backward(ag::AutogradContext* context, const ag::variable_list& gradients) {
    ag::variable_list all = {gradients[0]};
    for (const at::Tensor& zero : context->saved_data["zeros"].toTensorVector()) all.push_back(zero);
    return all;
  }
};

}  // namespace

void add_zero_gradients(std::vector<c10::IValue>& results, const std::vector<at::Tensor>& operands) {
  if (!at::GradMode::is_enabled()) return;
  std::vector<at::Tensor> wanted;
  std::copy_if(operands.begin(), operands.end(), std::back_inserter(wanted),
               [](const at::Tensor& operand) { return operand.defined() && operand.requires_grad(); });
  if (wanted.empty()) return;
  for (c10::IValue& result : results) {
    if (!result.isTensor()) continue;
    const at::Tensor tensor = result.toTensor();
    if (tensor.is_floating_point() || tensor.is_complex()) result = WithOperands::apply(tensor, at::TensorList(wanted));
  }
}

}  // namespace stagecraft
