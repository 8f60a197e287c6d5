#pragma once

#include "compile.h"
#include "stagecraft/graph/cut.h"
#include "stagecraft/stage/stage.h"

/// The layers of an exported program, for a recompute of some of them.
namespace stagecraft {

/// One stage of a cut program.
struct ExportedStage {
  std::shared_ptr<const graph::Program> program;
  std::vector<int> places;  ///< Where the program is cut into stages.
  std::size_t index = 0;
  graph::StageGraph graph;
  LoadedTensors loaded;
  at::Device device = at::kCPU;

  [[nodiscard]] bool is_last() const { return index == places.size(); }
};

/// A layer is what the program computes in one of a numbered row of modules, such as "blocks.3"; what comes before the
/// first of a stage, and after the last, are layers with an empty name. A layer that cannot be separated from the one
/// before it is part of it; a stage that cannot be separated at all is one layer.
std::vector<StageLayer> layers_of(const ExportedStage& stage);

}  // namespace stagecraft
