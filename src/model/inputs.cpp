#include <span>

#include "stagecraft/graph/ports.h"
#include "stagecraft/model/pipe.h"
#include "torch_types.h"

namespace stagecraft {
namespace {

Value value_of(const graph::Argument& constant) {
  if (const auto* flag = std::get_if<bool>(&constant)) return *flag;
  if (const auto* integer = std::get_if<std::int64_t>(&constant)) return *integer;
  if (const auto* real = std::get_if<double>(&constant)) return *real;
  if (const auto* text = std::get_if<std::string>(&constant)) return *text;
  return {};
}

/// The size of dimension 0 of the first input that has one: the batch of a program without dynamic sizes.
std::optional<std::int64_t> first_size(const graph::Program& program) {
  for (const graph::Port& port : graph::input_ports(program)) {
    const graph::TensorType* const tensor = graph::tensor_of(program, port);
    if (tensor != nullptr && !tensor->sizes.empty()) return tensor->sizes.front().value;
  }
  return std::nullopt;
}

/// Finds the rows of a batch in tensors.
class RowFinder {
 public:
  explicit RowFinder(const graph::Program& program)
      : symbol_(graph::batch_symbol(program)), first_(first_size(program)) {}

  [[nodiscard]] Split::Dimension in(const graph::TensorType& tensor) const {
    if (symbol_.empty()) {
      const bool is_batch = !tensor.sizes.empty() && tensor.sizes.front().value == first_;
      return is_batch ? Split::Dimension(0) : std::nullopt;
    }
    const int dimension = graph::dimension_of(tensor, symbol_);
    return dimension < 0 ? std::nullopt : Split::Dimension(dimension);
  }

 private:
  std::string symbol_;
  std::optional<std::int64_t> first_;
};

ModelLeaf leaf_of(const graph::Program& program, const graph::Port& port, const RowFinder& rows) {
  ModelLeaf leaf{port.name, std::nullopt, std::nullopt};
  if (const graph::TensorType* const tensor = graph::tensor_of(program, port)) {
    leaf.tensor = spec_of(*tensor);
    leaf.rows = rows.in(*tensor);
  } else if (!std::holds_alternative<graph::Use>(port.argument)) {
    leaf.fixed = true;
    leaf.value = value_of(port.argument);
  }
  return leaf;
}

Split split_of(const ModelInput& input) {
  std::vector<Split::Dimension> dimensions;
  for (const ModelLeaf& leaf : input.leaves) {
    if (leaf.tensor) dimensions.push_back(leaf.rows);
  }
  if (input.tree.kind != graph::Tree::Kind::kLeaf) return Split::each(std::move(dimensions));
  if (dimensions.empty() || !dimensions.front()) return Split::replicate();
  return Split::along(*dimensions.front());
}

Value take(const graph::Tree& tree, const ValueList& leaves, std::size_t& next) {
  using graph::Tree;
  if (tree.kind == Tree::Kind::kLeaf) return leaves[next++];
  if (tree.kind == Tree::Kind::kList) {
    ValueList list;
    for (const Tree& child : tree.children) list.push_back(take(child, leaves, next));
    return list;
  }
  ValueDict dict;
  for (std::size_t i = 0; i < tree.children.size(); ++i)
    dict.emplace_back(tree.keys[i], take(tree.children[i], leaves, next));
  return dict;
}

}  // namespace

Value nested(const graph::Tree& tree, const ValueList& leaves) {
  std::size_t next = 0;
  return take(tree, leaves, next);
}

std::vector<ModelInput> Pipe::inputs() const {
  const std::vector<graph::Port> ports = graph::input_ports(*program_);
  const RowFinder rows(*program_);
  std::vector<ModelInput> all;
  std::span<const graph::Port> rest = ports;
  const auto add = [&](const graph::Tree& tree, const std::string& name) {
    ModelInput input{name, tree, {}, {}};
    const auto own = rest.first(static_cast<std::size_t>(tree.leaves()));
    rest = rest.subspan(own.size());
    for (const graph::Port& port : own) input.leaves.push_back(leaf_of(*program_, port, rows));
    input.split = split_of(input);
    all.push_back(std::move(input));
  };
  for (std::size_t i = 0; i < program_->arguments.children.size(); ++i) {
    add(program_->arguments.children[i], i < program_->argument_names.size() ? program_->argument_names[i] : "");
  }
  for (std::size_t i = 0; i < program_->keywords.children.size(); ++i) {
    add(program_->keywords.children[i], program_->keywords.keys[i]);
  }
  return all;
}

std::optional<std::int64_t> Pipe::static_rows() const {
  return graph::batch_symbol(*program_).empty() ? first_size(*program_) : std::nullopt;
}

}  // namespace stagecraft
