#pragma once

#include <map>
#include <string>
#include <vector>

#include "stagecraft/graph/program.h"

/// Facts about a program, for the reports on a model.
namespace stagecraft::cli {

/// An input or output of the model, as its caller sees it.
struct Port {
  std::string name;          ///< "tokens", "extra.pair.0".
  graph::Argument argument;  ///< The value, or a constant.
};
std::vector<Port> input_ports(const graph::Program& program);
std::vector<Port> output_ports(const graph::Program& program);

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

}  // namespace stagecraft::cli
