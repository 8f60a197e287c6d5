#include "stagecraft/graph/ports.h"

#include <algorithm>

namespace stagecraft::graph {
namespace {

/// Appends the paths of all leaves of a tree.
void name_leaves(const Tree& tree, const std::string& path, std::vector<std::string>& names) {
  if (tree.kind == Tree::Kind::kLeaf) {
    names.push_back(path);
    return;
  }
  for (std::size_t i = 0; i < tree.children.size(); ++i) {
    const std::string own = i < tree.keys.size() ? tree.keys[i] : std::to_string(i);
    name_leaves(tree.children[i], path.empty() ? own : path + "." + own, names);
  }
}

std::vector<std::string> argument_leaves(const Program& program) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < program.arguments.children.size(); ++i) {
    const std::string own = i < program.argument_names.size() ? program.argument_names[i] : std::to_string(i);
    name_leaves(program.arguments.children[i], own, names);
  }
  name_leaves(program.keywords, {}, names);
  return names;
}

/// How much speaks for a symbol being the batch.
int score_of(const Program& program, const std::vector<Port>& ports, const std::string& symbol) {
  int score = 0;
  for (const Port& port : ports) {
    const TensorType* const tensor = tensor_of(program, port);
    if (tensor == nullptr) continue;
    const auto times = std::count_if(tensor->sizes.begin(), tensor->sizes.end(),
                                     [&](const Size& size) { return size.expression == symbol; });
    if (times > 1) --score;  // a square, such as a mask over positions
    if (times == 1 && tensor->sizes.front().expression == symbol) ++score;
  }
  return score;
}

}  // namespace

std::vector<Port> input_ports(const Program& program) {
  std::vector<std::string> names = argument_leaves(program);
  std::vector<Port> ports;
  for (const Input& input : program.inputs) {
    if (input.is_loaded()) continue;
    ports.push_back({ports.size() < names.size() ? names[ports.size()] : input.name,
                     input.kind == Input::Kind::kUser ? Argument(Use{input.value}) : input.fixed});
  }
  return ports;
}

std::vector<Port> output_ports(const Program& program) {
  std::vector<std::string> names;
  name_leaves(program.result, {}, names);
  std::vector<Port> ports;
  for (const Argument& output : program.outputs) {
    ports.push_back({ports.size() < names.size() ? names[ports.size()] : std::string(), output});
  }
  return ports;
}

const TensorType* tensor_of(const Program& program, const Port& port) {
  const auto* const use = std::get_if<Use>(&port.argument);
  if (use == nullptr || use->value == kNoValue) return nullptr;
  const ValueInfo& value = program.values[static_cast<std::size_t>(use->value)];
  return value.is_tensor() ? &value.tensor : nullptr;
}

std::string batch_symbol(const Program& program) {
  std::vector<Port> ports = input_ports(program);
  std::vector<std::string> symbols;
  for (const Port& port : ports) {
    const TensorType* const tensor = tensor_of(program, port);
    if (tensor == nullptr) continue;
    for (const Size& size : tensor->sizes) {
      const bool is_new = std::find(symbols.begin(), symbols.end(), size.expression) == symbols.end();
      if (!size.fixed() && is_new) symbols.push_back(size.expression);
    }
  }
  const std::vector<Port> outputs = output_ports(program);
  ports.insert(ports.end(), outputs.begin(), outputs.end());
  std::string best;
  int best_score = 0;
  for (const std::string& symbol : symbols) {
    const int score = score_of(program, ports, symbol);
    if (!best.empty() && score <= best_score) continue;
    best = symbol;
    best_score = score;
  }
  return best;
}

int dimension_of(const TensorType& tensor, const std::string& symbol) {
  const auto found = std::find_if(tensor.sizes.begin(), tensor.sizes.end(),
                                  [&](const Size& size) { return !symbol.empty() && size.expression == symbol; });
  return found == tensor.sizes.end() ? -1 : static_cast<int>(found - tensor.sizes.begin());
}

}  // namespace stagecraft::graph
