#pragma once

namespace torch::optim {
class Optimizer;
}

namespace stagecraft {

/// Like optimizer.step(), but with one kernel for many parameters where LibTorch has one: Adam and AdamW (without
/// amsgrad) on a GPU, several times faster there. The state stays in the optimizer. Results may differ from those of
/// step() in the last bit.
void fast_step(torch::optim::Optimizer& optimizer);

}  // namespace stagecraft
