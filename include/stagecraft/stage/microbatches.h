#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/stage/value.h"

/// Cuts a batch into microbatches, and joins results.
namespace stagecraft {

/// How one argument, keyword or target is cut. A tree is cut tensor by tensor. Scalars, none and 0-dimensional tensors
/// are given to every microbatch as they are.
struct Split {
  using Dimension = std::optional<std::int64_t>;

  /// Along a dimension; negative counts from the end. Sizes differ by at most one, the larger ones first.
  static Split along(std::int64_t dimension) { return Split{dimension, {}, {}}; }
  /// The whole value for every microbatch.
  static Split replicate() { return Split{std::nullopt, {}, {}}; }
  /// The tensors of a tree, in order, each along its own dimension or, where there is none, not at all.
  static Split each(std::vector<Dimension> dimensions) { return Split{0, {}, std::move(dimensions)}; }
  /// Along a dimension into exactly these sizes, one per microbatch.
  static Split into(std::vector<std::int64_t> sizes, std::int64_t dimension = 0) {
    return Split{dimension, std::move(sizes), {}};
  }

  Dimension dimension = 0;
  std::vector<std::int64_t> sizes;
  /// By tensor of a tree; beyond the list, `dimension`.
  std::vector<Dimension> dimensions = {};

  /// How one tensor of a tree is cut.
  [[nodiscard]] Split of(std::size_t tensor) const {
    return tensor < dimensions.size() ? Split{dimensions[tensor], sizes, {}} : *this;
  }
};

/// Joins the outputs of all microbatches, given in order, into one value.
using Reducer = std::function<Value(const std::vector<Value>&)>;

/// Concatenates tensors; 0-dimensional ones, such as losses, are stacked. Scalars must agree.
Reducer concatenate(std::int64_t dimension = 0);
Reducer add_up();
Reducer average();
/// The value of the first microbatch: for what is the same in all.
Reducer take_first();

/// Sizes of `count` parts of `rows`; they differ by at most one, the larger ones first. Throws InvalidArgument when
/// there are fewer rows than parts.
std::vector<std::int64_t> even_sizes(std::int64_t rows, int count);

/// Cuts a value into one per microbatch. `what` names the value in errors ("argument 0", "target"). Throws
/// InvalidArgument before anything is cut when there are fewer rows than microbatches, the dimension does not exist, or
/// given sizes do not fit.
std::vector<Value> split(const Value& value, const Split& how, int microbatches, const std::string& what);

/// The sizes that `split` would cut the first tensor into; empty when nothing is cut.
std::vector<std::int64_t> split_sizes(const Value& value, const Split& how, int microbatches, const std::string& what);

}  // namespace stagecraft
