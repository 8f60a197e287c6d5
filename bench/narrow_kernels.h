#pragma once

#include <torch/torch.h>

/// Work that leaves most of a GPU free, for measuring what runs beside what.
namespace bench {

/// Rows of numbers. LibTorch's scans take one block of threads per row, each on a multiprocessor of its own: 60 rows
/// take less than half of an H100 or H200, which have 132. They wait for themselves, not for memory, which all share.
inline at::Tensor narrow_input(std::int64_t rows, const at::Device& device, std::int64_t length = 16384) {
  return at::randn({rows, length}, at::TensorOptions(device));
}

/// Runs `passes` kernels one after the other, each as wide as its input has rows.
inline at::Tensor narrow_passes(at::Tensor x, std::int64_t passes) {
  for (std::int64_t i = 0; i < passes; ++i) x = at::logcumsumexp(x, -1);
  return x;
}

/// A layer whose input gradient and weight gradient each take so many such kernels, and its forward as many as both.
/// Its results mean nothing.
struct Narrow : torch::autograd::Function<Narrow> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            std::int64_t passes) {
    context->saved_data["passes"] = passes;
    return narrow_passes(x, 2 * passes) + weight.sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const std::int64_t passes = context->saved_data["passes"].toInt();
    at::Tensor of_input;
    at::Tensor of_weight;
    if (context->needs_input_grad(0)) of_input = narrow_passes(gradients[0], passes);
    if (context->needs_input_grad(1)) of_weight = narrow_passes(gradients[0], passes).mean().expand({2, 2});
    return {of_input, of_weight, at::Tensor()};
  }
};

struct NarrowLayer : torch::nn::Module {
  explicit NarrowLayer(std::int64_t kernels)
      : passes(kernels), weight(register_parameter("weight", at::zeros({2, 2}))) {}
  at::Tensor forward(const at::Tensor& x) { return Narrow::apply(x, weight, passes); }
  std::int64_t passes;
  at::Tensor weight;
};

}  // namespace bench
