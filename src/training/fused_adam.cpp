#include "fused_adam.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <map>
#include <system_error>
#include <thread>

#include "adam_pass.h"

namespace stagecraft {
namespace {

/// Tensors that one call of a kernel takes.
struct Batch {
  std::vector<at::Tensor> parameters, gradients, averages, squares, steps;
};

/// Fewer are not worth a thread of their own, which takes some ten microseconds to start.
constexpr std::int64_t kElementsPerThread = 1 << 17;

/// Whether one pass can take a parameter with a gradient or state like `other`.
bool fits_one_pass(const at::Tensor& parameter, const at::Tensor& other) {
  const at::ScalarType type = parameter.scalar_type();
  return parameter.is_cpu() && other.is_cpu() && (type == at::kFloat || type == at::kDouble) &&
         other.scalar_type() == type && parameter.is_non_overlapping_and_dense() &&
         other.sizes() == parameter.sizes() && other.strides() == parameter.strides();
}

/// A parameter of float32 or float64 whose gradient and state have its strides.
struct Pass {
  at::Tensor parameter, average, square;
  AdamNumbers numbers;

  void run(std::int64_t begin, std::int64_t end) const {
    parameter.scalar_type() == at::kFloat ? run_as<float>(begin, end) : run_as<double>(begin, end);
  }

 private:
  template <typename T>
  void run_as(std::int64_t begin, std::int64_t end) const {
    adam_pass(parameter.mutable_data_ptr<T>() + begin, parameter.grad().const_data_ptr<T>() + begin,
              average.mutable_data_ptr<T>() + begin, square.mutable_data_ptr<T>() + begin, end - begin, numbers);
  }
};

/// Divides all elements among the threads that an operation may use. (at::parallel_for is a plain loop in code that is
/// not compiled for OpenMP.)
void run_all(const std::vector<Pass>& passes) {
  std::int64_t total = 0;
  for (const Pass& pass : passes) total += pass.parameter.numel();
  const std::int64_t threads = std::clamp<std::int64_t>(total / kElementsPerThread, 1, at::get_num_threads());
  const auto work = [&](std::int64_t share) {
    const std::int64_t begin = total * share / threads, end = total * (share + 1) / threads;
    std::int64_t place = 0;
    for (const Pass& pass : passes) {
      const std::int64_t count = pass.parameter.numel();
      const std::int64_t from = std::clamp<std::int64_t>(begin - place, 0, count);
      const std::int64_t to = std::clamp<std::int64_t>(end - place, 0, count);
      if (from < to) pass.run(from, to);
      place += count;
    }
  };
  std::vector<std::thread> helpers;
  std::int64_t started = 1;
  try {
    for (; started < threads; ++started) helpers.emplace_back(work, started);
  } catch (const std::system_error&) {  // no more threads: this one does the rest
  }
  work(0);
  for (std::int64_t share = started; share < threads; ++share) work(share);
  for (std::thread& helper : helpers) helper.join();
  // As operations in place do: a graph that still needs the old values must not compute with the new ones.
  for (const Pass& pass : passes) {
    for (const at::Tensor& changed : {pass.parameter, pass.average, pass.square})
      changed.unsafeGetTensorImpl()->bump_version();
  }
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
  if (kept == optimizer.state().end() || !kept->second) return true;
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
  std::vector<Pass> passes;
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    const auto [beta1, beta2] = options.betas();
    std::map<std::pair<at::ScalarType, std::int64_t>, Batch> batches;  // by type and number of steps
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined() || parameter.numel() == 0) continue;
      State& state = state_of<State>(optimizer, parameter);
      state.step(state.step() + 1);
      if (kernels == AdamKernels::kOnePass) {
        passes.push_back(
            {parameter,
             state.exp_avg(),
             state.exp_avg_sq(),
             {options.lr(), beta1, beta2, options.weight_decay(), options.eps(), state.step(), decays_gradients}});
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
  run_all(passes);
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
