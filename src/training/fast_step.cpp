#include "stagecraft/training/fast_step.h"

#include <algorithm>

#include "fused_adam.h"

namespace stagecraft {

void fast_step(torch::optim::Optimizer& optimizer) {
  const auto is_on_gpu = [](const at::Tensor& parameter) { return parameter.is_cuda(); };
  const bool on_gpu = std::all_of(
      optimizer.param_groups().begin(), optimizer.param_groups().end(),
      [&](const auto& group) { return std::all_of(group.params().begin(), group.params().end(), is_on_gpu); });
  // LibTorch's kernels for a CPU round the ends of a vector otherwise than its middle: a shard would not equal the
  // whole.
  if (!fused_adam_step(optimizer, on_gpu ? AdamKernels::kLibTorch : AdamKernels::kOnePass)) optimizer.step();
}

}  // namespace stagecraft
