#pragma once

#include <string>
#include <vector>

#include "stagecraft/core/text.h"
#include "stagecraft/runtime/pipeline.h"

namespace torch::optim {
class Optimizer;
}

/// The tensors of a rank that belong in a checkpoint.
namespace stagecraft {

/// Parameters and buffers of this rank's stages, without those that are not saved. A tensor that several of its stages
/// share under one name is there once. Of sharded parameters: this replica's part. `all_buffers`: with those too.
NamedTensors weights_of(const Pipeline& pipeline, bool all_buffers = false);
/// Further names of a parameter of the pipeline.
std::vector<std::string> other_names(const Pipeline& pipeline, const std::string& parameter);
/// Names of buffers that are not saved.
std::vector<std::string> not_saved(const Pipeline& pipeline);
/// Parameters of the pipeline that the optimizer updates.
NamedTensors optimized(const Pipeline& pipeline, const torch::optim::Optimizer& optimizer);
/// Whether the optimizer has a parameter that is not in the pipeline.
bool has_strangers(const Pipeline& pipeline, const torch::optim::Optimizer& optimizer);

/// The tensor's data, contiguous in host memory.
at::Tensor in_memory(const at::Tensor& tensor);

/// Gathers the words of every rank of the world, by rank. No word may contain a 0 byte.
std::vector<std::vector<std::string>> gather(World& world, const std::vector<std::string>& words);

/// The faults of all ranks, each listed once.
Faults merged(const std::vector<std::vector<std::string>>& by_rank);

}  // namespace stagecraft
