#include "clipping.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace stagecraft {

std::vector<at::Tensor> counted_parameters(const std::vector<Stage>& stages, const std::vector<Tie>& ties,
                                           const ParameterStore& parameters) {
  std::vector<at::Tensor> counted;
  for (const Stage& stage : stages) {
    for (const auto& [name, parameter] : stage.parameters()) {
      if (!parameter.defined()) continue;
      const auto counts_elsewhere = [&, &own = name](const Tie& tie) {
        const bool is_tied = std::find(tie.stages.begin(), tie.stages.end(), stage.index()) != tie.stages.end();
        return tie.parameter == own && is_tied && tie.stages.front() != stage.index();
      };
      if (std::any_of(ties.begin(), ties.end(), counts_elsewhere)) continue;
      const at::Tensor master = parameters.master_of(parameter);
      const auto same = [&](const at::Tensor& other) { return other.is_same(master); };
      if (std::none_of(counted.begin(), counted.end(), same)) counted.push_back(master);
    }
  }
  return counted;
}

at::Tensor gradient_norm(World& world, const std::vector<at::Tensor>& counted, bool is_sharded) {
  const at::NoGradGuard no_graph;
  at::Tensor square = at::zeros({}, at::TensorOptions(at::kDouble).device(world.device()));
  std::vector<at::Tensor> together;  // on a GPU, one kernel takes many
  for (const at::Tensor& parameter : counted) {
    if (!parameter.grad().defined()) continue;
    if (parameter.is_cuda() && parameter.is_floating_point() && parameter.grad().layout() == at::kStrided) {
      together.push_back(parameter.grad());
      continue;
    }
    const at::Tensor norm = at::linalg_vector_norm(parameter.grad(), 2, std::nullopt, false,
                                                   parameter.is_complex() ? at::kComplexDouble : at::kDouble);
    square += norm.square();
  }
  if (!together.empty()) square += at::stack(at::_foreach_norm(together, 2, at::kDouble)).square().sum();
  // Replicas have the same gradients, or different parts of them.
  Group& group = is_sharded ? world.everyone() : world.pipeline();
  const auto during = group.during("the norm of the gradients");
  group.all_reduce(square);
  return square.sqrt_();
}

}  // namespace stagecraft
