#include "step_inputs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

Split split_of(const std::vector<Split>& splits, std::size_t position) {
  return position < splits.size() ? splits[position] : Split();
}

/// Rows of the first tensor that has dimensions; 0 if there is none.
std::int64_t rows_of(const Value& value) {
  std::int64_t rows = 0;
  value.for_each_tensor([&](const at::Tensor& tensor) {
    if (rows == 0 && tensor.defined() && tensor.dim() > 0) rows = tensor.size(0);
  });
  return rows;
}

}  // namespace

/// One part per microbatch.
std::vector<Value> InputSplitter::cut(const Value& value, const Split& how, const std::string& what, Rows& rows) const {
  std::vector<Value> parts = split(value, how, microbatches_, what);
  if (!is_cut_evenly(how)) return parts;
  const std::vector<std::int64_t> sizes = split_sizes(value, how, microbatches_, what);
  if (sizes.empty()) return parts;
  if (!rows.sizes.empty() && rows.sizes != sizes) {
    const auto total = [](const std::vector<std::int64_t>& all) {
      return std::to_string(std::accumulate(all.begin(), all.end(), std::int64_t{0}));
    };
    throw InvalidArgument(what + " has " + total(sizes) + " rows, but " + rows.what + " has " + total(rows.sizes) +
                          ": both are cut into microbatches, so give as many rows of each, or set how it is cut "
                          "(Split::replicate gives all of it to every microbatch)");
  }
  rows = {what, sizes};
  return parts;
}

void InputSplitter::split_batch(StepInputs& inputs, const ValueList& arguments, const StepOptions& options) const {
  inputs.arguments.resize(static_cast<std::size_t>(microbatches_));
  Rows rows;
  if (has_first_) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const std::string what = "argument " + std::to_string(static_cast<std::int64_t>(i));
      const std::vector<Value> parts = cut(arguments[i], split_of(options_.argument_splits, i), what, rows);
      for (std::size_t m = 0; m < parts.size(); ++m) inputs.arguments[m].push_back(parts[m]);
    }
  }
  split_keywords(inputs, options.keywords, rows);
  add_keywords(inputs, options.microbatch_keywords);
  if (has_first_) inputs.rows = rows.sizes;
  if (!has_last_ || options.target.is_none()) return;
  const Split& how = options_.target_split;
  inputs.targets = cut(options.target, how, "target", rows);
  const std::vector<std::int64_t> sizes = split_sizes(options.target, how, microbatches_, "target");
  if (is_cut_evenly(how)) inputs.target_rows = sizes;
  inputs.loss_rows = sizes;
}

void InputSplitter::split_keywords(StepInputs& inputs, const ValueDict& keywords, Rows& rows) const {
  inputs.keywords.resize(static_cast<std::size_t>(microbatches_));
  for (const auto& [name, value] : keywords) {
    const auto found = options_.keyword_splits.find(name);
    const Split how = found == options_.keyword_splits.end() ? Split() : found->second;
    const std::vector<Value> parts = cut(value, how, "keyword '" + name + "'", rows);
    for (std::size_t m = 0; m < parts.size(); ++m) inputs.keywords[m].emplace_back(name, parts[m]);
  }
}

/// Adds keywords that are cut already.
void InputSplitter::add_keywords(StepInputs& inputs, const std::vector<ValueDict>& by_microbatch) const {
  if (by_microbatch.empty()) return;
  require_count(by_microbatch.size(), "dictionaries of keywords");
  for (std::size_t m = 0; m < by_microbatch.size(); ++m) {
    for (const auto& [name, value] : by_microbatch[m]) {
      const auto same = [&own = name](const auto& other) { return other.first == own; };
      ValueDict& all = inputs.keywords[m];
      if (std::any_of(all.begin(), all.end(), same)) {
        throw InvalidArgument("the keyword '" + name +
                              "' is given twice: in keywords, which are cut, and in microbatch_keywords");
      }
      all.emplace_back(name, value);
    }
  }
}

void InputSplitter::require_count(std::size_t got, const char* what) const {
  if (got == static_cast<std::size_t>(microbatches_)) return;
  throw InvalidArgument("there are " + std::to_string(microbatches_) + " microbatches, but " +
                        std::to_string(static_cast<std::int64_t>(got)) + " " + what + ": give one per microbatch");
}

void InputSplitter::take_microbatches(StepInputs& inputs, const std::vector<ValueList>& arguments,
                                      const std::vector<Value>& targets, const StepOptions& options) const {
  const auto count = static_cast<std::size_t>(microbatches_);
  if (has_first_) require_count(arguments.size(), "lists of arguments");
  if (has_last_ && !targets.empty()) require_count(targets.size(), "targets");
  inputs.arguments = has_first_ ? arguments : std::vector<ValueList>(count);
  Rows of_keywords;
  split_keywords(inputs, options.keywords, of_keywords);
  add_keywords(inputs, options.microbatch_keywords);
  if (!has_last_ || targets.empty()) return;
  inputs.targets = targets;
  for (const Value& target : inputs.targets) {
    if (const std::int64_t size = rows_of(target); size > 0) inputs.loss_rows.push_back(size);
  }
  if (inputs.loss_rows.size() != count) inputs.loss_rows.clear();
}

}  // namespace stagecraft
