#pragma once

#include <torch/optim/optimizer.h>

namespace stagecraft {

enum class AdamKernels {
  kLibTorch,  ///< LibTorch's fused kernels, on any device: many parameters in one call.
  kOnePass,   ///< adam_pass, on a CPU.
};

/// A step of Adam or AdamW. Returns false, and changes nothing, for another optimizer, and where a parameter does not
/// allow it.
bool fused_adam_step(torch::optim::Optimizer& optimizer, AdamKernels kernels);

}  // namespace stagecraft
