#pragma once

#include <string>
#include <vector>

#include "stagecraft/graph/program.h"

/// The inputs and outputs of a model, as its caller sees them.
namespace stagecraft::graph {

/// A leaf of the inputs or outputs.
struct Port {
  std::string name;   ///< "tokens", "extra.pair.0"; empty for an output that is not nested.
  Argument argument;  ///< The value, or a constant.
};
/// In the order of Program::inputs, without those that are loaded.
std::vector<Port> input_ports(const Program& program);
/// In the order of Program::outputs.
std::vector<Port> output_ports(const Program& program);

/// The tensor that a port takes or gives; null if it is none.
const TensorType* tensor_of(const Program& program, const Port& port);

/// The dynamic size that counts the rows of a batch: the one that most inputs and outputs have as their first size, or
/// else the first dynamic size of the inputs. Empty when the inputs have none.
std::string batch_symbol(const Program& program);
/// The dimension in which the symbol is a size; -1 if there is none.
int dimension_of(const TensorType& tensor, const std::string& symbol);

}  // namespace stagecraft::graph
