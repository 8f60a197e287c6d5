#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "options.h"

namespace stagecraft::train {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Options& options, std::vector<at::Tensor> parameters);

/// The learning rate of the next update.
double learning_rate(const torch::optim::Optimizer& optimizer);

}  // namespace stagecraft::train
