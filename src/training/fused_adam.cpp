#include "fused_adam.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <map>

#include "adam_pass.h"

namespace stagecraft {
namespace {

/// Tensors that one call of a kernel takes.
struct Batch {
  std::vector<at::Tensor> parameters, gradients, averages, squares, steps;
};

constexpr std::int64_t kElementsPerTask = 1 << 15;

/// Whether one pass can take a parameter with a gradient or state like `other`.
bool fits_one_pass(const at::Tensor& parameter, const at::Tensor& other) {
  const at::ScalarType type = parameter.scalar_type();
  return parameter.is_cpu() && other.is_cpu() && (type == at::kFloat || type == at::kDouble) &&
         other.scalar_type() == type && parameter.is_non_overlapping_and_dense() &&
         other.sizes() == parameter.sizes() && other.strides() == parameter.strides();
}

template <typename T>
void one_pass(const at::Tensor& parameter, const at::Tensor& average, const at::Tensor& square,
              const AdamNumbers& numbers) {
  T* const p = parameter.mutable_data_ptr<T>();
  const T* const g = parameter.grad().const_data_ptr<T>();
  T* const a = average.mutable_data_ptr<T>();
  T* const s = square.mutable_data_ptr<T>();
  at::parallel_for(0, parameter.numel(), kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
    adam_pass(p + begin, g + begin, a + begin, s + begin, end - begin, numbers);
  });
}

template <typename State>
bool allows(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, AdamKernels kernels) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return true;  // it is left alone
  if (gradient.layout() != at::kStrided) return false;
  if (kernels == AdamKernels::kLibTorch) {
    return parameter.is_floating_point() && gradient.scalar_type() == parameter.scalar_type() &&
           gradient.device() == parameter.device();
  }
  if (!fits_one_pass(parameter, gradient)) return false;
  const auto kept = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (kept == optimizer.state().end()) return true;
  const auto& state = static_cast<const State&>(*kept->second);
  return fits_one_pass(parameter, state.exp_avg()) && fits_one_pass(parameter, state.exp_avg_sq());
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

/// AdamW's options have the names of Adam's, and its fused kernel takes the same arguments.
template <typename State, typename Options, typename Kernel>
bool step(torch::optim::Optimizer& optimizer, AdamKernels kernels, bool decays_gradients, const Kernel& kernel) {
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    if (static_cast<const Options&>(group.options()).amsgrad()) return false;
    for (const at::Tensor& parameter : group.params()) {
      if (!allows<State>(optimizer, parameter, kernels)) return false;
    }
  }
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    const auto [beta1, beta2] = options.betas();
    std::map<std::pair<at::ScalarType, std::int64_t>, Batch> batches;  // by type and number of steps
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined() || parameter.numel() == 0) continue;
      State& state = state_of<State>(optimizer, parameter);
      state.step(state.step() + 1);
      if (kernels == AdamKernels::kOnePass) {
        const bool is_float = parameter.scalar_type() == at::kFloat;
        (is_float ? one_pass<float> : one_pass<double>)(parameter, state.exp_avg(), state.exp_avg_sq(),
                                                        {options.lr(), beta1, beta2, options.weight_decay(),
                                                         options.eps(), state.step(), decays_gradients});
        continue;
      }
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
             options.lr(), beta1, beta2, options.weight_decay(), options.eps());
    }
  }
  return true;
}

}  // namespace

bool fused_adam_step(torch::optim::Optimizer& optimizer, AdamKernels kernels) {
  const at::NoGradGuard no_graph;
  const auto fused = [](auto kernel) {
    return [kernel](auto&&... arguments) { kernel(arguments..., /*amsgrad=*/false, /*maximize=*/false); };
  };
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) {
    return step<torch::optim::AdamWParamState, torch::optim::AdamWOptions>(
        optimizer, kernels, /*decays_gradients=*/false,
        fused([](auto&&... arguments) { at::_fused_adamw_(arguments...); }));
  }
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr) {
    return step<torch::optim::AdamParamState, torch::optim::AdamOptions>(
        optimizer, kernels, /*decays_gradients=*/true,
        fused([](auto&&... arguments) { at::_fused_adam_(arguments...); }));
  }
  return false;
}

}  // namespace stagecraft
