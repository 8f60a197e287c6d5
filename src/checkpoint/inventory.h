#pragma once

#include <string>
#include <vector>

#include "stagecraft/core/faults.h"
#include "stagecraft/runtime/pipeline.h"

namespace torch::optim {
class Optimizer;
}

/// What a rank has that belongs in a checkpoint.
namespace stagecraft {

/// Parameters and buffers of this rank's stages, without those that are not saved. A tensor that several of its stages
/// share under one name is there once.
NamedTensors weights_of(const Pipeline& pipeline);
/// Further names of a parameter of the pipeline.
std::vector<std::string> other_names(const Pipeline& pipeline, const std::string& parameter);
/// Names of buffers that are not saved.
std::vector<std::string> not_saved(const Pipeline& pipeline);
/// Parameters of the pipeline that the optimizer changes, by every name they have.
NamedTensors optimized(const Pipeline& pipeline, const torch::optim::Optimizer& optimizer);
/// Whether the optimizer changes something that is not of the pipeline.
bool has_strangers(const Pipeline& pipeline, const torch::optim::Optimizer& optimizer);

/// The words of every rank of the world, by rank. No word holds a 0.
std::vector<std::vector<std::string>> gather(World& world, const std::vector<std::string>& words);

/// What all ranks say, each thing once.
Faults merged(const std::vector<std::vector<std::string>>& by_rank);

}  // namespace stagecraft
