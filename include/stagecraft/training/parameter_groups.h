#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/runtime/world.h"
#include "stagecraft/stage/stage.h"

/// Groups of parameters with options of their own, such as weights that decay and biases that do not.
namespace stagecraft {

/// The parameters whose names a pattern fits (core/name_pattern.h: `*` and `?`), and their options: AdamWOptions for
/// AdamW. LibTorch takes a field that has its default value for one that was not given, and sets it to that of the
/// options given to the optimizer itself.
struct GroupRule {
  template <typename Options>
  GroupRule(std::string fits, const Options& given) : pattern(std::move(fits)), options(new Options(given)) {}

  std::string pattern;
  std::shared_ptr<const torch::optim::OptimizerOptions> options;
};

/// One group per rule, in their order, for the optimizer of this rank's parameters (Pipeline::named_parameters). Each
/// parameter is in the group of the first rule that fits it; frozen ones (requires_grad is false) are in none. A group
/// may be empty on this rank: all ranks have the same groups.
///
///     torch::optim::AdamW optimizer(
///         sc::parameter_groups(world, pipeline.named_parameters(),
///                              {{"*.bias", torch::optim::AdamWOptions(3e-4).weight_decay(0)},
///                               {"*", torch::optim::AdamWOptions(3e-4).weight_decay(0.1)}}),
///         torch::optim::AdamWOptions(3e-4));
///
/// Called by all ranks. Throws InvalidArgument on all: for a parameter that no rule fits, for a rule that fits no
/// parameter of any rank, or only those of earlier rules, and for rules that differ between ranks.
std::vector<torch::optim::OptimizerParamGroup> parameter_groups(World& world, const NamedTensors& parameters,
                                                                const std::vector<GroupRule>& rules);

}  // namespace stagecraft
