// Checks an optimizer before it updates the parameters of a pipeline.

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include "stagecraft/core/error.h"
#include "stagecraft/data_parallel/masters.h"
#include "stagecraft/runtime/pipeline.h"

namespace stagecraft {
namespace {

template <typename... Kinds>
bool is_any_of(const torch::optim::Optimizer& optimizer) {
  return ((dynamic_cast<const Kinds*>(&optimizer) != nullptr) || ...);
}

bool works_by_element(const torch::optim::Optimizer& optimizer) {
  return is_any_of<torch::optim::SGD, torch::optim::Adam, torch::optim::AdamW, torch::optim::RMSprop,
                   torch::optim::Adagrad>(optimizer);
}

}  // namespace

void Pipeline::attach(const torch::optim::Optimizer& optimizer, bool is_element_wise) {
  const std::vector<at::Tensor> own = parameters();
  const auto is_own = [&](const at::Tensor& tensor) {
    return std::any_of(own.begin(), own.end(), [&](const at::Tensor& other) { return other.is_same(tensor); });
  };
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    if (std::all_of(group.params().begin(), group.params().end(), is_own)) continue;
    throw InvalidArgument(
        "the optimizer has a tensor that is not one of pipeline.parameters(), so it would train nothing there: make it "
        "from pipeline.parameters(), after the pipeline");
  }
  if (masters() != nullptr && masters()->are_parts() && !is_element_wise && !works_by_element(optimizer)) {
    throw InvalidArgument(
        "this optimizer is not known to work element by element, and would compute something else on a part of the "
        "parameters than on all of them: use SGD, Adam, AdamW, RMSprop or Adagrad, leave out shard, or say that it "
        "does (attach(optimizer, true))");
  }
  set_attached();
}

}  // namespace stagecraft
