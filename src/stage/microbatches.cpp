#include "stagecraft/stage/microbatches.h"

#include <ATen/Functions.h>

#include <cmath>
#include <numeric>
#include <type_traits>
#include <variant>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::string text = "[";
  for (const std::int64_t size : tensor.sizes()) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

bool is_cut(const at::Tensor& tensor, const Split& how) {
  return how.dimension.has_value() && tensor.defined() && tensor.dim() > 0;
}

/// The size of each microbatch along the dimension of the split.
std::vector<std::int64_t> sizes_of(const at::Tensor& tensor, const Split& how, int microbatches,
                                   const std::string& what) {
  const std::int64_t dimension = *how.dimension < 0 ? *how.dimension + tensor.dim() : *how.dimension;
  if (dimension < 0 || dimension >= tensor.dim()) {
    throw InvalidArgument(what + ": there is no dimension " + std::to_string(*how.dimension) + " in shape " +
                          shape_text(tensor) + ": split along another, or replicate it");
  }
  const std::int64_t rows = tensor.size(dimension);
  if (how.sizes.empty()) {
    if (rows < microbatches) {
      throw InvalidArgument(what + ": shape " + shape_text(tensor) + " has " + std::to_string(rows) +
                            " rows along dimension " + std::to_string(dimension) + ", fewer than the " +
                            std::to_string(microbatches) + " microbatches: give more rows or use fewer microbatches");
    }
    return even_sizes(rows, microbatches);
  }
  const std::int64_t total = std::accumulate(how.sizes.begin(), how.sizes.end(), std::int64_t{0});
  const bool positive = std::all_of(how.sizes.begin(), how.sizes.end(), [](std::int64_t size) { return size > 0; });
  if (how.sizes.size() != static_cast<std::size_t>(microbatches) || total != rows || !positive) {
    throw InvalidArgument(what + ": the " + std::to_string(how.sizes.size()) + " sizes given add up to " +
                          std::to_string(total) + ", but there are " + std::to_string(rows) + " rows and " +
                          std::to_string(microbatches) + " microbatches: give one size of at least 1 per microbatch");
  }
  return how.sizes;
}

[[noreturn]] void refuse_to_join(const std::string& why) {
  throw InvalidArgument("the outputs of the microbatches cannot be put together: " + why +
                        ": give a reducer (PipelineOptions::merge_outputs), or return the same kind always");
}

/// How many items it has, and their names.
std::string layout_of(const Value& value) {
  if (value.is_list()) return "a list of " + std::to_string(value.list().size());
  std::string names;
  for (const auto& [name, item] : value.dict()) names += (names.empty() ? "" : ", ") + name;
  return "a dict of (" + names + ")";
}

/// Of one kind. Objects that nobody can look into say it themselves.
bool is_same_scalar(const Value& a, const Value& b) {
  const auto is_same = [&](const auto& held) {
    using Held = std::decay_t<decltype(held)>;
    const Held& other = std::get<Held>(b.held());
    if constexpr (std::is_same_v<Held, double>) return held == other || (std::isnan(held) && std::isnan(other));
    if constexpr (std::is_same_v<Held, bool> || std::is_same_v<Held, std::int64_t> ||
                  std::is_same_v<Held, std::string>) {
      return held == other;
    }
    if constexpr (std::is_same_v<Held, OpaquePtr>) return held->stands_for(*other);
    return true;
  };
  return std::visit(is_same, a.held());
}

/// Joins the trees of all microbatches item by item; they must have the same structure, and the same scalars.
template <typename Join>
Value join(const std::vector<Value>& parts, const Join& join_tensors) {
  const Value& model = parts.front();
  for (const Value& part : parts) {
    if (part.held().index() != model.held().index()) {
      refuse_to_join("one is " + model.kind() + ", another " + part.kind());
    }
    if ((model.is_list() || model.is_dict()) && layout_of(part) != layout_of(model)) {
      refuse_to_join("one is " + layout_of(model) + ", another " + layout_of(part));
    }
  }
  if (model.is_tensor()) {
    std::vector<at::Tensor> tensors;
    for (const Value& part : parts) tensors.push_back(part.tensor());
    return join_tensors(tensors);
  }
  const auto item_of_all = [&](std::size_t i) {
    std::vector<Value> items;
    for (const Value& part : parts) items.push_back(part.is_list() ? part.list().at(i) : part.dict().at(i).second);
    return items;
  };
  if (model.is_list()) {
    ValueList joined;
    for (std::size_t i = 0; i < model.list().size(); ++i) joined.push_back(join(item_of_all(i), join_tensors));
    return joined;
  }
  if (model.is_dict()) {
    ValueDict joined;
    for (std::size_t i = 0; i < model.dict().size(); ++i) {
      joined.emplace_back(model.dict()[i].first, join(item_of_all(i), join_tensors));
    }
    return joined;
  }
  for (const Value& part : parts) {
    if (is_same_scalar(model, part)) continue;
    if (model.kind() != part.kind()) refuse_to_join("one is " + model.kind() + ", another " + part.kind());
    refuse_to_join(model.kind() + " differs between them");
  }
  return model;
}

}  // namespace

std::vector<std::int64_t> even_sizes(std::int64_t rows, int count) {
  if (count < 1 || rows < count) {
    throw InvalidArgument(std::to_string(rows) + " rows cannot be cut into " + std::to_string(count) +
                          " parts of at least one row");
  }
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(count), rows / count);
  for (std::int64_t i = 0; i < rows % count; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

std::vector<std::int64_t> split_sizes(const Value& value, const Split& how, int microbatches, const std::string& what) {
  std::vector<std::int64_t> sizes;
  std::size_t next = 0;
  value.for_each_tensor([&](const at::Tensor& tensor) {
    const Split own = how.of(next++);
    if (sizes.empty() && is_cut(tensor, own)) sizes = sizes_of(tensor, own, microbatches, what);
  });
  return sizes;
}

std::vector<Value> split(const Value& value, const Split& how, int microbatches, const std::string& what) {
  if (value.is_tensor() && how.dimensions.empty()) {  // by far the most common: no walk over a tree
    if (!is_cut(value.tensor(), how)) return std::vector<Value>(static_cast<std::size_t>(microbatches), value);
    const auto pieces =
        value.tensor().split_with_sizes(sizes_of(value.tensor(), how, microbatches, what), *how.dimension);
    return {pieces.begin(), pieces.end()};
  }
  std::vector<std::vector<at::Tensor>> pieces;  // per tensor of the tree, per microbatch
  value.for_each_tensor([&](const at::Tensor& tensor) {
    const Split own = how.of(pieces.size());
    pieces.push_back(is_cut(tensor, own)
                         ? tensor.split_with_sizes(sizes_of(tensor, own, microbatches, what), *own.dimension)
                         : std::vector<at::Tensor>(static_cast<std::size_t>(microbatches), tensor));
  });
  std::vector<Value> parts;
  for (std::size_t m = 0; m < static_cast<std::size_t>(microbatches); ++m) {
    std::size_t next = 0;
    parts.push_back(value.map_tensors([&](const at::Tensor&) { return pieces[next++][m]; }));
  }
  return parts;
}

Reducer concatenate(std::int64_t dimension) {
  return [dimension](const std::vector<Value>& parts) {
    return join(parts, [&](const std::vector<at::Tensor>& tensors) {
      return tensors.front().dim() == 0 ? at::stack(tensors) : at::cat(tensors, dimension);
    });
  };
}

Reducer add_up() {
  return [](const std::vector<Value>& parts) {
    return join(parts, [](const std::vector<at::Tensor>& tensors) {
      at::Tensor total = tensors.front().clone();
      for (std::size_t i = 1; i < tensors.size(); ++i) total += tensors[i];
      return total;
    });
  };
}

Reducer average() {
  return [](const std::vector<Value>& parts) {
    return add_up()(parts).map_tensors(
        [&](const at::Tensor& total) { return total / static_cast<double>(parts.size()); });
  };
}

Reducer take_first() {
  return [](const std::vector<Value>& parts) { return parts.front(); };
}

}  // namespace stagecraft
