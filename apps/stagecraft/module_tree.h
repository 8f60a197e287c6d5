#pragma once

#include <string>
#include <vector>

#include "stagecraft/graph/program.h"

namespace stagecraft::cli {

/// A module with all that is below it.
struct ModuleFigures {
  std::string path;  ///< Empty: the whole model.
  std::string type;  ///< Empty for a module that only holds others.
  int depth = 0;
  int nodes = 0;
  std::int64_t parameters = 0;  ///< Numbers in them; a weight with several names counts under its first.
  std::int64_t parameter_bytes = 0;
  double work = 0;

  /// The last part of the path.
  [[nodiscard]] std::string name() const { return path.substr(path.rfind('.') + 1); }
};

/// The whole model first, each module before those inside it, neighbours in the order of the program.
std::vector<ModuleFigures> module_tree(const graph::Program& program);

}  // namespace stagecraft::cli
