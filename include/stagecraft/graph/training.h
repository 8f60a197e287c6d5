#pragma once

#include "stagecraft/graph/program.h"

/// What training a program would change.
namespace stagecraft::graph {

/// Parameters that require gradients but get none, as indices in Program::inputs.
struct Untrained {
  std::vector<int> without_gradients;  ///< Used, but only where gradients are off, or for what has none.
  std::vector<int> unused;
  bool all = false;  ///< No parameter would be trained.

  [[nodiscard]] bool empty() const { return without_gradients.empty() && unused.empty(); }
};

/// Follows gradients back from these outputs (indices in Program::outputs), or from all of them. A parameter of which
/// it is not sure counts as trained.
Untrained untrained_parameters(const Program& program, const std::vector<int>& outputs = {});

/// "nothing will train a, b, ...".
std::string text(const Program& program, const Untrained& untrained);

}  // namespace stagecraft::graph
