#pragma once

#include <string>
#include <vector>

#include "stagecraft/graph/cut.h"

/// Bytes that training an exported program takes, for reports and for costs.
namespace stagecraft::cli {

/// Numbers that an optimizer keeps for each that it updates, by the name of the optimizer.
struct OptimizerState {
  std::string name = "adam";
  /// 0 for sgd, 1 for momentum, 2 for adam.
  [[nodiscard]] int numbers() const { return name == "adam" ? 2 : name == "momentum" ? 1 : 0; }
};

struct TrainingBytes {
  double parameters = 0;
  double gradients = 0;  ///< Frozen parameters have none.
  double optimizer = 0;  ///< In the type of the parameters.
  double activations =
      0;              ///< One microbatch of the exported size: inputs, and all tensors made, views apart. Estimated.
  double inputs = 0;  ///< What other stages send of it.
};

TrainingBytes training_bytes(const graph::Program& program, const graph::StageGraph& stage,
                             const OptimizerState& optimizer);

/// Training bytes of the whole program.
TrainingBytes training_bytes(const graph::Program& program, const OptimizerState& optimizer);

}  // namespace stagecraft::cli
