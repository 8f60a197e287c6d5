#pragma once

#include <map>
#include <string>
#include <vector>

#include "report_text.h"
#include "stagecraft/graph/ports.h"

/// Facts about a program, for the reports on a model: its inputs and outputs, totals, operators and modules.
namespace stagecraft::cli {

/// "float32 [s0, 8]", "an integer (s0)", "always true".
std::string port_text(const graph::Program& program, const graph::Argument& argument);

/// Text of a constant argument: "true", "3", "None".
std::string fixed_text(const graph::Argument& argument);

struct Total {
  int count = 0;
  std::int64_t numbers = 0;
  std::int64_t bytes = 0;
};
Total total_of(const graph::Program& program, graph::Input::Kind kind);

struct OperatorFigures {
  std::string name;
  int count = 0;
  double work = 0;
};
/// The most frequent first.
std::vector<OperatorFigures> operator_figures(const graph::Program& program);

/// Values at export of the symbols that are a dimension of an input by themselves.
std::map<std::string, std::int64_t> exported_symbols(const graph::Program& program);

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

// Values of a program in JSON, with the same keys in every report.

/// {"name", "kind": "tensor", "type", "sizes": ["s0", 8], "bytes"}, {"name", "kind": "integer" | "real" | "flag"}.
Json value_json(const graph::Program& program, graph::ValueId value);

/// Operators that neither LibTorch nor Stagecraft has: [{"name", "count", "remedy"}].
Json missing_json(const graph::Program& program);

/// The same with the caller's name; {"name", "kind": "fixed", "value"} for a constant.
Json port_json(const graph::Program& program, const graph::Port& port);

}  // namespace stagecraft::cli
