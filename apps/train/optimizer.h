#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

#include "options.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/training/learning_rate.h"

namespace stagecraft::train {

/// Called by all ranks. Throws InvalidArgument for --no-decay.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(World& world, const Pipeline& pipeline, const Options& options);

/// The learning rate of every step. Throws InvalidArgument.
LearningRate make_learning_rate(const Options& options);

}  // namespace stagecraft::train
