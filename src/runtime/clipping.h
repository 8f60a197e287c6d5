#pragma once

#include <vector>

#include "parameter_store.h"
#include "stagecraft/runtime/pipeline.h"

/// The gradients of a whole model, as one vector that is divided among ranks.
namespace stagecraft {

/// What this rank adds to the norm: the optimizer's tensors of its stages, without those of tied parameters that
/// another stage counts.
std::vector<at::Tensor> counted_parameters(const std::vector<Stage>& stages, const std::vector<Tie>& ties,
                                           const ParameterStore& parameters);

/// The 2-norm of the gradients of all ranks' parameters, a scalar on this rank's device, the same on all ranks. Called
/// by all ranks.
at::Tensor gradient_norm(World& world, const std::vector<at::Tensor>& counted, bool is_sharded);

}  // namespace stagecraft
