#pragma once

#include <string>
#include <vector>

#include "stagecraft/graph/program.h"

namespace stagecraft::cli {

/// Totals of a module, including all modules inside it.
struct ModuleFigures {
  std::string path;  ///< Empty for the whole model.
  std::string type;  ///< Empty for a module that only contains others.
  int depth = 0;
  int nodes = 0;
  std::int64_t parameters = 0;  ///< Number of elements; a weight with several names counts under its first.
  std::int64_t parameter_bytes = 0;
  double work = 0;

  /// The last part of the path.
  [[nodiscard]] std::string name() const { return path.substr(path.rfind('.') + 1); }
};

/// All modules in preorder: the whole model first, siblings in order of their first use.
std::vector<ModuleFigures> module_tree(const graph::Program& program);

}  // namespace stagecraft::cli
