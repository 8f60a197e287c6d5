#include "step_inputs.h"

#include <numeric>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

Split split_of(const std::vector<Split>& splits, std::size_t position) {
  return position < splits.size() ? splits[position] : Split();
}

/// Rows of the first tensor with rows; 0 without.
std::int64_t rows_of(const Value& value) {
  std::int64_t rows = 0;
  value.for_each_tensor([&](const at::Tensor& tensor) {
    if (rows == 0 && tensor.defined() && tensor.dim() > 0) rows = tensor.size(0);
  });
  return rows;
}

}  // namespace

void InputSplitter::split_batch(StepInputs& inputs, const ValueList& arguments, const StepOptions& options) const {
  inputs.arguments.resize(static_cast<std::size_t>(microbatches_));
  std::vector<std::int64_t> rows;
  if (has_first_) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const std::string what = "argument " + std::to_string(static_cast<std::int64_t>(i));
      const Split how = split_of(options_.argument_splits, i);
      if (rows.empty()) rows = split_sizes(arguments[i], how, microbatches_, what);
      const std::vector<Value> parts = split(arguments[i], how, microbatches_, what);
      for (std::size_t m = 0; m < parts.size(); ++m) inputs.arguments[m].push_back(parts[m]);
    }
  }
  split_keywords(inputs, options.keywords);
  if (has_last_ && !options.target.is_none()) {
    inputs.targets = split(options.target, options_.target_split, microbatches_, "target");
    const auto sizes = split_sizes(options.target, options_.target_split, microbatches_, "target");
    if (!sizes.empty()) rows = sizes;
  }
  weigh(inputs, rows);
}

void InputSplitter::split_keywords(StepInputs& inputs, const ValueDict& keywords) const {
  inputs.keywords.resize(static_cast<std::size_t>(microbatches_));
  for (const auto& [name, value] : keywords) {
    const auto found = options_.keyword_splits.find(name);
    const Split how = found == options_.keyword_splits.end() ? Split() : found->second;
    const std::vector<Value> parts = split(value, how, microbatches_, "keyword '" + name + "'");
    for (std::size_t m = 0; m < parts.size(); ++m) inputs.keywords[m].emplace_back(name, parts[m]);
  }
}

void InputSplitter::take_microbatches(StepInputs& inputs, const std::vector<ValueList>& arguments,
                                      const std::vector<Value>& targets, const StepOptions& options) const {
  const auto count = static_cast<std::size_t>(microbatches_);
  const auto check = [&](bool needed, std::size_t got, const char* what) {
    if (!needed || got == count) return;
    throw InvalidArgument("there are " + std::to_string(microbatches_) + " microbatches, but " +
                          std::to_string(static_cast<std::int64_t>(got)) + " " + what + ": give one per microbatch");
  };
  check(has_first_, arguments.size(), "lists of arguments");
  check(has_last_ && !targets.empty(), targets.size(), "targets");
  inputs.arguments = has_first_ ? arguments : std::vector<ValueList>(count);
  split_keywords(inputs, options.keywords);
  if (has_last_) inputs.targets = targets;
  std::vector<std::int64_t> rows;
  for (const Value& target : inputs.targets) {
    if (const std::int64_t size = rows_of(target); size > 0) rows.push_back(size);
  }
  if (rows.size() != count) rows.clear();
  weigh(inputs, rows);
}

/// A mean over rows of unequal microbatches is a weighted mean of their means.
void InputSplitter::weigh(StepInputs& inputs, const std::vector<std::int64_t>& rows) const {
  const auto count = static_cast<std::size_t>(microbatches_);
  inputs.rows = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  if (options_.loss_scale == LossScale::kSum) {
    inputs.weights.assign(count, 1.0);
  } else if (rows.empty()) {
    inputs.weights.assign(count, 1.0 / static_cast<double>(count));
  } else {
    const auto total = static_cast<double>(inputs.rows);
    for (const std::int64_t size : rows) inputs.weights.push_back(static_cast<double>(size) / total);
  }
}

}  // namespace stagecraft
