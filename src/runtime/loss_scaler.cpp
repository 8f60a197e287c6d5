#include "loss_scaler.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>

#include "stagecraft/core/error.h"

namespace stagecraft {

bool LossScaler::unscale(World& world, const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_graph;
  const auto number = [&](double value) {
    return at::full({1}, value, at::TensorOptions(at::kFloat).device(world.device()));
  };
  std::map<at::ScalarType, std::vector<at::Tensor>> gradients;  // one kernel takes many of one type
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    const at::Tensor real = gradient.is_complex() ? at::view_as_real(gradient) : gradient;
    gradients[real.scalar_type()].push_back(real);
  }
  at::Tensor overflow = number(0);
  const at::Tensor factor = number(1 / state_.scale);
  for (auto& [type, tensors] : gradients) at::_amp_foreach_non_finite_check_and_unscale_(tensors, overflow, factor);
  const auto during = world.everyone().during("the search for overflows");
  world.everyone().all_reduce(overflow, Reduction::kMax);
  const bool is_finite = overflow.item<float>() == 0;
  waits_ = false;
  ++state_.updates;
  if (!is_finite) {
    state_ = {state_.scale * options_.backoff, 0};
  } else if (state_.updates >= options_.growth_interval) {
    state_ = {state_.scale * options_.growth, 0};
  }
  return is_finite;
}

void LossScaler::require_unscaled(const char* what) const {
  if (!waits_) return;
  throw InvalidArgument(std::string("the gradients are those of scaled losses (float16), so ") + what +
                        " would be wrong: call pipeline.unscale_gradients() after the last step of every update, and "
                        "leave out the update if it returns false");
}

}  // namespace stagecraft
