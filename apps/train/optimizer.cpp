#include "optimizer.h"

#include <torch/optim.h>

#include "stagecraft/training/parameter_groups.h"

namespace stagecraft::train {
namespace {

template <typename Optimizer, typename Own>
std::unique_ptr<torch::optim::Optimizer> made(World& world, const Pipeline& pipeline, const Options& options, Own own) {
  if (options.weight_decay >= 0) own.weight_decay(options.weight_decay);
  if (options.no_decay.empty()) return std::make_unique<Optimizer>(pipeline.parameters(), own);
  Own without = own;
  without.weight_decay(0);
  std::vector<GroupRule> rules;
  for (const std::string& pattern : options.no_decay) rules.emplace_back(pattern, without);
  rules.emplace_back("*", own);
  // What a group leaves at its default value, LibTorch takes from the options of the optimizer itself.
  const bool zero_is_default = Own(options.rate).weight_decay() == 0;
  return std::make_unique<Optimizer>(parameter_groups(world, pipeline.named_parameters(), rules),
                                     zero_is_default ? without : own);
}

template <typename Own>
Own like_adam(const Options& options) {
  Own own(options.rate);
  own.betas(std::make_tuple(options.beta1, options.beta2));
  own.eps(options.epsilon);
  return own;
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(World& world, const Pipeline& pipeline,
                                                        const Options& options) {
  if (options.optimizer == "sgd") {
    return made<torch::optim::SGD>(world, pipeline, options,
                                   torch::optim::SGDOptions(options.rate).momentum(options.momentum));
  }
  if (options.optimizer == "adam") {
    return made<torch::optim::Adam>(world, pipeline, options, like_adam<torch::optim::AdamOptions>(options));
  }
  return made<torch::optim::AdamW>(world, pipeline, options, like_adam<torch::optim::AdamWOptions>(options));
}

LearningRate make_learning_rate(const Options& options) {
  LearningRateOptions how{.base = options.rate, .warm_up = options.warm_up};
  if (options.rate_schedule == "constant") return LearningRate::constant(how);
  how.updates = options.rate_steps > 0 ? options.rate_steps : options.steps;
  how.last = options.last_rate;
  return options.rate_schedule == "linear" ? LearningRate::linear(how) : LearningRate::cosine(how);
}

}  // namespace stagecraft::train
