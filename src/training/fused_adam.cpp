#include "fused_adam.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <map>

namespace stagecraft {
namespace {

/// Tensors that one call of a kernel takes.
struct Batch {
  std::vector<at::Tensor> parameters, gradients, averages, squares, steps;
};

bool allows_fusion(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return true;  // it is left alone
  return parameter.is_floating_point() && !gradient.is_sparse() && gradient.scalar_type() == parameter.scalar_type() &&
         gradient.device() == parameter.device();
}

template <typename State>
State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto& kept = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!kept) {
    auto fresh = std::make_unique<State>();
    fresh->step(0);
    fresh->exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    fresh->exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    kept = std::move(fresh);
  }
  return static_cast<State&>(*kept);
}

template <typename State, typename Options, typename Kernel>
bool step(torch::optim::Optimizer& optimizer, const Kernel& kernel) {
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    if (static_cast<const Options&>(group.options()).amsgrad()) return false;
    if (!std::all_of(group.params().begin(), group.params().end(), allows_fusion)) return false;
  }
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    std::map<std::pair<at::ScalarType, std::int64_t>, Batch> batches;  // by type and number of steps
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined() || parameter.numel() == 0) continue;
      State& state = state_of<State>(optimizer, parameter);
      state.step(state.step() + 1);
      Batch& batch = batches[{parameter.scalar_type(), state.step()}];
      if (batch.steps.empty()) {
        batch.steps.push_back(at::full({}, static_cast<double>(state.step()), parameter.options().dtype(at::kFloat)));
      } else {
        batch.steps.push_back(batch.steps.front());
      }
      batch.parameters.push_back(parameter);
      batch.gradients.push_back(parameter.grad());
      batch.averages.push_back(state.exp_avg());
      batch.squares.push_back(state.exp_avg_sq());
    }
    for (auto& [key, batch] : batches) {
      kernel(batch.parameters, batch.gradients, batch.averages, batch.squares, at::TensorList(), batch.steps,
             options.lr(), std::get<0>(options.betas()), std::get<1>(options.betas()), options.weight_decay(),
             options.eps());
    }
  }
  return true;
}

}  // namespace

bool fused_adam_step(torch::optim::Optimizer& optimizer) {
  const at::NoGradGuard no_graph;
  const auto fused = [](auto kernel) {
    return [kernel](auto&&... arguments) { kernel(arguments..., /*amsgrad=*/false, /*maximize=*/false); };
  };
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) {
    return step<torch::optim::AdamWParamState, torch::optim::AdamWOptions>(
        optimizer, fused([](auto&&... arguments) { at::_fused_adamw_(arguments...); }));
  }
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr) {
    return step<torch::optim::AdamParamState, torch::optim::AdamOptions>(
        optimizer, fused([](auto&&... arguments) { at::_fused_adam_(arguments...); }));
  }
  return false;
}

}  // namespace stagecraft
