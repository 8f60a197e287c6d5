#pragma once

#include <torch/optim/optimizer.h>

namespace stagecraft {

/// A step of Adam or AdamW by LibTorch's fused kernels, on any device. Returns false, and changes nothing, for another
/// optimizer, and where a parameter does not allow it.
bool fused_adam_step(torch::optim::Optimizer& optimizer);

}  // namespace stagecraft
