#include "batches.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "stagecraft/core/error.h"

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
std::map<std::string, std::int64_t> vocabularies_of(const Pipe& pipe) {
  const graph::Program& program = pipe.program();
  std::vector<const graph::Input*> leaves;
  for (const graph::Input& input : program.inputs) {
    if (!input.is_loaded()) leaves.push_back(&input);
  }
  const std::vector<ModelInput> inputs = pipe.inputs();
  std::map<std::string, std::int64_t> all;
  if (inputs.size() != leaves.size()) return all;  // some are nested
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (leaves[i]->kind != graph::Input::Kind::kUser) continue;
    if (const std::int64_t size = vocabulary_of(program, leaves[i]->value)) all.emplace(inputs[i].name, size);
  }
  return all;
}

}  // namespace

Batches::Batches(const Pipe& pipe, std::shared_ptr<const Data> data, std::string path, at::Device device)
    : data_(std::move(data)), path_(std::move(path)), device_(device), vocabularies_(vocabularies_of(pipe)) {
  Faults none;  // open_data has refused them
  const WantedInputs wanted = WantedInputs::of(pipe, none);
  for (const ModelInput& input : wanted.by_row) by_row_.push_back(input.name);
  for (const ModelInput& input : wanted.whole) whole_.push_back(input.name);
}

ValueDict Batches::inputs(const Rows& rows) const {
  ValueDict dict;
  for (const std::string& name : by_row_) {
    const at::Tensor tensor = data_->input(name, rows);
    check_tokens(name, tensor, rows);
    dict.emplace_back(name, tensor.to(device_));
  }
  for (const std::string& name : whole_) dict.emplace_back(name, data_->whole(name).to(device_));
  return dict;
}

/// LibTorch's own error does not say which token it was, and on a GPU it ends the process.
void Batches::check_tokens(const std::string& name, const at::Tensor& tokens, const Rows& rows) const {
  const auto found = vocabularies_.find(name);
  if (found == vocabularies_.end() || tokens.numel() == 0 || tokens.dim() == 0) return;
  const std::int64_t size = found->second;
  const at::Tensor is_unknown = tokens.lt(0).logical_or_(tokens.ge(size));
  if (!is_unknown.any().item<bool>()) return;
  const std::int64_t first = is_unknown.flatten().nonzero()[0].item<std::int64_t>();
  const std::int64_t per_row = tokens.numel() / tokens.size(0);
  const std::int64_t row = rows[static_cast<std::size_t>(first / per_row)];
  std::string where = "row " + std::to_string(row) + " of '" + name + "'";
  if (const std::int64_t length = data_->tokens_per_row())
    where = "at " + std::to_string(row * length + first % length);
  throw FileError(path_, "token " + std::to_string(tokens.flatten()[first].item<std::int64_t>()) + " (" + where +
                             ") is none of the model, whose embedding has " + std::to_string(size) +
                             " rows: tokens are 0 to " + std::to_string(size - 1) +
                             "; use the tokenizer of the model, or export it with a larger vocabulary");
}

}  // namespace stagecraft::train
