#include "optimizer.h"

#include <torch/optim.h>

namespace stagecraft::train {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Options& options, std::vector<at::Tensor> parameters) {
  const auto decay = [&](auto& own) {
    if (options.weight_decay >= 0) own.weight_decay(options.weight_decay);
  };
  const auto like_adam = [&](auto& own) {
    own.betas(std::make_tuple(options.beta1, options.beta2));
    own.eps(options.epsilon);
    decay(own);
  };
  if (options.optimizer == "sgd") {
    torch::optim::SGDOptions own(options.rate);
    own.momentum(options.momentum);
    decay(own);
    return std::make_unique<torch::optim::SGD>(std::move(parameters), own);
  }
  if (options.optimizer == "adam") {
    torch::optim::AdamOptions own(options.rate);
    like_adam(own);
    return std::make_unique<torch::optim::Adam>(std::move(parameters), own);
  }
  torch::optim::AdamWOptions own(options.rate);
  like_adam(own);
  return std::make_unique<torch::optim::AdamW>(std::move(parameters), own);
}

double learning_rate(const torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups().front().options().get_lr();
}

}  // namespace stagecraft::train
