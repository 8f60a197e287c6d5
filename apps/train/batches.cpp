#include "batches.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "stagecraft/core/error.h"
#include "stagecraft/graph/ports.h"

namespace stagecraft::train {
namespace {

graph::ValueId value_used(const graph::Node& node, std::string_view argument) {
  const graph::Argument* const found = node.argument(argument);
  const auto* const use = found == nullptr ? nullptr : std::get_if<graph::Use>(found);
  return use == nullptr ? graph::kNoValue : use->value;
}

/// Rows of the smallest embedding in which a value is looked up directly; 0 if there is none.
std::int64_t vocabulary_of(const graph::Program& program, graph::ValueId tokens) {
  std::int64_t least = 0;
  for (const graph::Node& node : program.nodes) {
    if (node.target != "aten::embedding" || value_used(node, "indices") != tokens) continue;
    const graph::ValueId weight = value_used(node, "weight");
    if (weight == graph::kNoValue) continue;
    const std::vector<graph::Size>& sizes = program.values[static_cast<std::size_t>(weight)].tensor.sizes;
    if (sizes.empty() || !sizes.front().fixed()) continue;
    least = least == 0 ? sizes.front().value : std::min(least, sizes.front().value);
  }
  return least;
}

/// By the names of the model's inputs.
std::map<std::string, std::int64_t> vocabularies_of(const graph::Program& program) {
  std::map<std::string, std::int64_t> all;
  for (const graph::Port& port : graph::input_ports(program)) {
    const auto* const use = std::get_if<graph::Use>(&port.argument);
    if (use == nullptr) continue;
    if (const std::int64_t size = vocabulary_of(program, use->value)) all.emplace(port.name, size);
  }
  return all;
}

/// The inputs that data fills, cut as was decided for it.
std::vector<ModelInput> filled_inputs(const Pipe& pipe, const WantedData& wanted) {
  std::vector<ModelInput> all = pipe.inputs();
  std::erase_if(all, [](const ModelInput& input) {
    return std::all_of(input.leaves.begin(), input.leaves.end(), [](const ModelLeaf& leaf) { return leaf.fixed; });
  });
  for (ModelInput& input : all) {
    for (ModelLeaf& leaf : input.leaves) {
      for (const ModelLeaf& own : wanted.by_row) {
        if (own.name == leaf.name) leaf.rows = own.rows;
      }
    }
  }
  return all;
}

}  // namespace

Batches::Batches(const Pipe& pipe, const WantedData& wanted, std::shared_ptr<const Data> data, at::Device device)
    : data_(std::move(data)),
      device_(device),
      inputs_(filled_inputs(pipe, wanted)),
      vocabularies_(vocabularies_of(pipe.program())) {}

ValueDict Batches::inputs(const Rows& rows) const {
  ValueDict dict;
  for (const ModelInput& input : inputs_) {
    ValueList leaves;
    for (const ModelLeaf& leaf : input.leaves)
      leaves.push_back(leaf.fixed ? leaf.value : Value(read(leaf, rows).to(device_)));
    dict.emplace_back(input.name, nested(input.tree, leaves));
  }
  return dict;
}

at::Tensor Batches::read(const ModelLeaf& leaf, const Rows& rows) const {
  if (!leaf.rows) return data_->whole(leaf.name);
  at::Tensor tensor = data_->input(leaf.name, rows, *leaf.rows);
  check_tokens(leaf, tensor, rows);
  return tensor;
}

/// LibTorch's own error does not say which token it was, and on a GPU it ends the process.
void Batches::check_tokens(const ModelLeaf& leaf, const at::Tensor& tokens, const Rows& rows) const {
  const auto found = vocabularies_.find(leaf.name);
  if (found == vocabularies_.end() || tokens.numel() == 0 || tokens.dim() == 0) return;
  const std::int64_t size = found->second;
  const at::Tensor is_unknown = tokens.lt(0).logical_or_(tokens.ge(size));
  if (!is_unknown.any().item<bool>()) return;
  const at::Tensor first = is_unknown.nonzero()[0];  // its place in each dimension
  const std::int64_t row = rows[static_cast<std::size_t>(first[*leaf.rows].item<std::int64_t>())];
  throw FileError(data_->path(), "token " + std::to_string(tokens.masked_select(is_unknown)[0].item<std::int64_t>()) +
                                     " (" + data_->place_of(leaf.name, row, first[-1].item<std::int64_t>()) +
                                     ") is none of the model, whose embedding has " + std::to_string(size) +
                                     " rows: tokens are 0 to " + std::to_string(size - 1) +
                                     "; use the tokenizer of the model, or export it with a larger vocabulary");
}

}  // namespace stagecraft::train
