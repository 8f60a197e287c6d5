#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "stagecraft/runtime/pipeline.h"

namespace torch::optim {
class Optimizer;
}

/// Saves and loads the weights of a pipeline as one safetensors file.
///
/// Parameters and buffers are stored under the names they have in their stages, which must be those of the whole model;
/// a name that several stages have (a tied parameter, a copied buffer) is stored once. So a file can be loaded with any
/// other stage layout, and without optimizer state it is what Python's load_state_dict takes. Optimizer state is stored
/// under "optimizer/<what>/<parameter>", the steps in the metadata under "stagecraft." names.
namespace stagecraft {

class LearningRate;

struct SaveOptions {
  /// The optimizer of this rank's parameters: SGD, Adam, AdamW, RMSprop or Adagrad of torch::optim. Null: saves weights
  /// only.
  const torch::optim::Optimizer* optimizer = nullptr;
  /// The step number that `load_checkpoint` returns.
  std::int64_t step = 0;
  /// Saved with the rest, so that a run that resumes can compare its own with it. Null: none is saved.
  const LearningRate* learning_rate = nullptr;
  /// Your own metadata; only that of rank 0 is saved.
  std::map<std::string, std::string> metadata = {};
};

/// All ranks call it. The first rank of replica 0 writes, and receives the tensors of the others one by one. The file
/// replaces an older one only when it is complete.
///
/// Throws InvalidArgument on all ranks, before anything is written, with everything that cannot be saved: a name that
/// means different tensors on different stages, a type that the format does not have, an unknown optimizer. Any other
/// failure, such as FileError on a full disk, ends the call on all ranks like a failed step and leaves the older file
/// as it was.
void save_checkpoint(World& world, const Pipeline& pipeline, const std::string& path, const SaveOptions& options = {});

struct LoadOptions {
  /// Receives the saved optimizer state; its hyper-parameters stay. Null: loads weights only.
  torch::optim::Optimizer* optimizer = nullptr;
  /// The learning rate that this run goes on with, compared with the saved one: if they differ, or if only one of them
  /// is there although there is an optimizer, that is an error, because training would go on otherwise than it began.
  const LearningRate* learning_rate = nullptr;
  /// Go on with this run's learning rate, whatever was saved.
  bool other_learning_rate = false;
};

/// All ranks call it; each reads only its own tensors. Returns the step that was saved, 0 when the file has none, and
/// sets Pipeline::steps where the file has it.
///
/// Throws FileError on all ranks with everything that is missing, unexpected, or of another shape or type, before
/// anything is changed. Tensors are compared with their checksums, if the file has them, as they are read; FileError on
/// all ranks names those that are damaged. After that error, and when the disk fails while reading, some tensors are
/// loaded and others not: load another file before going on.
std::int64_t load_checkpoint(World& world, Pipeline& pipeline, const std::string& path,
                             const LoadOptions& options = {});

}  // namespace stagecraft
