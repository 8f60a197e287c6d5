#pragma once

#include <map>
#include <string>
#include <vector>

#include "model_instruction.h"
#include "stagecraft/graph/cut.h"

namespace stagecraft {

/// The loaded tensors of a stage, by index in Program::inputs.
using LoadedTensors = std::map<int, at::Tensor>;

/// A stage as a flat list of instructions over slots, one per value that is not loaded.
struct Compiled {
  std::vector<ModelInstruction> constants;  ///< Instructions whose results do not change: run once.
  std::vector<ModelInstruction> instructions;
  std::vector<std::int32_t> received;  ///< Slots, in the order of StageGraph::receives; -1: unused.
  std::vector<std::int32_t> slot_of;   ///< By value; -1: it has none.
  std::vector<std::int32_t> kept;      ///< Slots of constants that instructions or results use.
  /// The tensors that the constants were computed from.
  std::vector<at::Tensor> sources;
  int slots = 0;
};

/// Resolves every operator and argument. Throws InvalidArgument that lists all that cannot be resolved. Devices named
/// in the program become `device`.
Compiled compile_stage(const graph::Program& program, const graph::StageGraph& stage, const LoadedTensors& loaded,
                       at::Device device, bool is_last);

/// Throws InvalidArgument that lists every operator of the program that this LibTorch does not have.
void require_operators(const graph::Program& program);

}  // namespace stagecraft
