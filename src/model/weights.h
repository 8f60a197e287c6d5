#pragma once

#include "compile.h"
#include "stagecraft/file/zip.h"
#include "stagecraft/graph/program.h"

namespace stagecraft {

/// The part of a record that a stored tensor lies in, in elements.
struct Extent {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
Extent extent_of(const graph::StoredTensor& stored);

/// Reads these inputs of the program, and nothing else of the archive, straight into their tensors. Tensors that share
/// a record share memory. Parameters require gradients if they did in the exported model.
LoadedTensors load_weights(const ZipArchive& archive, const graph::Program& program, const std::vector<int>& inputs,
                           at::Device device);

}  // namespace stagecraft
