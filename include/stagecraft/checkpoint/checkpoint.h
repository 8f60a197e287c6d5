#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "stagecraft/runtime/pipeline.h"

namespace torch::optim {
class Optimizer;
}

/// A pipeline's weights in and out, as one safetensors file.
///
/// Parameters and buffers lie under the names they have in their stages, which must be those of the whole model; a name
/// that several stages have (a tied parameter, a copied buffer) is there once. So any stage layout reads what any other
/// has written, and without optimizer state the file is what Python's load_state_dict takes. The state of an optimizer
/// is under "optimizer/<what>/<parameter>", the steps are in the metadata under "stagecraft." names.
namespace stagecraft {

struct SaveOptions {
  /// Of this rank's parameters; SGD, Adam, AdamW, RMSprop or Adagrad of torch::optim. Null: weights alone.
  const torch::optim::Optimizer* optimizer = nullptr;
  /// Handed back by `load_checkpoint`.
  std::int64_t step = 0;
  /// Of your own; that of rank 0 counts.
  std::map<std::string, std::string> metadata = {};
};

/// All ranks call it; the first rank of replica 0 writes, and receives one tensor after the other from the others. The
/// file appears whole, in the place of the one before, or not at all.
///
/// Throws InvalidArgument on all ranks, before anything is written, with all that cannot be saved: a name that means
/// different tensors on different stages, a type that the format does not have, an optimizer that is not known. Any
/// other failure (FileError on a full disk) ends it on all ranks like a failed step, and leaves the file that was
/// there.
void save_checkpoint(World& world, const Pipeline& pipeline, const std::string& path, const SaveOptions& options = {});

struct LoadOptions {
  /// Gets the state of the optimizer that was saved; its hyper-parameters stay. Null: weights alone.
  torch::optim::Optimizer* optimizer = nullptr;
};

/// All ranks call it; each reads only its own tensors. Returns the step that was saved, 0 when the file has none, and
/// sets Pipeline::steps where the file has it.
///
/// Throws FileError on all ranks with everything that is missing, unexpected, or of another shape or type; then nothing
/// was changed. Tensors are compared with their checksums, where the file has them, as they are read: FileError on all
/// ranks names those that are damaged. Then, and when the disk fails while tensors are being read, some are loaded and
/// others not: load another file before going on.
std::int64_t load_checkpoint(World& world, Pipeline& pipeline, const std::string& path,
                             const LoadOptions& options = {});

}  // namespace stagecraft
