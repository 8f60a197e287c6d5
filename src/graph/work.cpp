// Estimates of the work of a node's forward. Products count 2 operations per multiplication, as usual; operators that
// only go through memory count kPerElement for each element, whichever is more, read or written.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "stagecraft/graph/operators.h"

namespace stagecraft::graph {
namespace {

constexpr double kPerElement = 10;  // bound by memory bandwidth rather than by compute

/// What the estimates need to know of a node.
class Call {
 public:
  Call(const Program& program, const Node& node) : program_(program), node_(node) {
    const std::size_t colons = node.target.find("::");
    const std::string_view whole = std::string_view(node.target).substr(colons == std::string::npos ? 0 : colons + 2);
    base_ = whole.substr(0, whole.find('.'));
  }

  [[nodiscard]] std::string_view base() const { return base_; }
  [[nodiscard]] bool is(std::initializer_list<std::string_view> names) const {
    return std::find(names.begin(), names.end(), base_) != names.end();
  }
  [[nodiscard]] bool contains(std::string_view part) const { return base_.find(part) != std::string_view::npos; }

  /// The type of a tensor argument; null if it is not given, or no tensor.
  [[nodiscard]] const TensorType* tensor(std::string_view name) const {
    const Argument* given = node_.argument(name);
    const auto* use = given == nullptr ? nullptr : std::get_if<Use>(given);
    return use == nullptr ? nullptr : type_of(use->value);
  }
  [[nodiscard]] const TensorType* first_of(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if (const TensorType* found = tensor(name)) return found;
    }
    return nullptr;
  }
  [[nodiscard]] std::vector<const TensorType*> tensors(std::string_view name) const {
    std::vector<const TensorType*> all;
    const Argument* given = node_.argument(name);
    const auto* uses = given == nullptr ? nullptr : std::get_if<Uses>(given);
    if (uses == nullptr) return all;
    for (const Use& use : *uses) {
      if (const TensorType* type = type_of(use.value)) all.push_back(type);
    }
    return all;
  }
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view name) const {
    const Argument* given = node_.argument(name);
    const auto* list = given == nullptr ? nullptr : std::get_if<std::vector<std::int64_t>>(given);
    return list == nullptr ? std::vector<std::int64_t>() : *list;
  }
  [[nodiscard]] bool flag(std::string_view name) const {
    const Argument* given = node_.argument(name);
    const auto* value = given == nullptr ? nullptr : std::get_if<bool>(given);
    return value != nullptr && *value;
  }
  [[nodiscard]] std::string text(std::string_view name) const {
    const Argument* given = node_.argument(name);
    const auto* value = given == nullptr ? nullptr : std::get_if<std::string>(given);
    return value == nullptr ? std::string() : *value;
  }

  /// Elements that the node makes.
  [[nodiscard]] double made() const {
    double count = 0;
    for (const ValueId value : node_.makes()) count += elements(type_of(value));
    return count;
  }
  /// Elements of its largest tensor argument.
  [[nodiscard]] double largest_argument() const {
    double most = 0;
    for (const ValueId value : node_.uses()) most = std::max(most, elements(type_of(value)));
    return most;
  }

  static double elements(const TensorType* type) { return type == nullptr ? 0 : static_cast<double>(type->elements()); }
  /// A dimension counted from the end, 1 is the last; 1 for one that is not there.
  static double size(const TensorType* type, std::size_t from_end) {
    if (type == nullptr || type->sizes.size() < from_end) return 1;
    return static_cast<double>(type->sizes[type->sizes.size() - from_end].value);
  }
  static double first_size(const TensorType* type) {
    return type == nullptr || type->sizes.empty() ? 1 : std::max(1.0, static_cast<double>(type->sizes.front().value));
  }

 private:
  [[nodiscard]] const TensorType* type_of(ValueId value) const {
    if (value == kNoValue) return nullptr;
    const ValueInfo& info = program_.values[static_cast<std::size_t>(value)];
    return info.is_tensor() ? &info.tensor : nullptr;
  }

  const Program& program_;
  const Node& node_;
  std::string_view base_;
};

using Work = std::optional<double>;

double product(const std::vector<std::int64_t>& sizes) {
  double all = 1;
  for (const std::int64_t size : sizes) all *= static_cast<double>(std::max<std::int64_t>(1, size));
  return all;
}

/// Every element of the output is a sum over the rows of the weight that belong to it; of a transposed convolution,
/// every element of the input is spread that way.
Work convolution(const Call& call) {
  if (!call.contains("conv") || call.contains("backward")) return {};
  const TensorType* weight = call.tensor("weight");
  const TensorType* input = call.first_of({"input", "self"});
  if (weight == nullptr) return {};
  const double elements = Call::elements(weight);
  if (call.is({"conv_tbc"})) return 2 * call.made() * elements / std::max(1.0, Call::size(weight, 1));
  const bool transposed = call.contains("transpose") || call.flag("transposed");
  return 2 * (transposed ? Call::elements(input) : call.made()) * elements / Call::first_size(weight);
}

Work matrix_product(const Call& call) {
  const double made = call.made();
  if (call.is({"linear", "_addmm_activation", "mkldnn_linear"})) {
    if (const TensorType* weight = call.tensor("weight")) return 2 * made * Call::size(weight, 1);
  }
  if (call.is({"bilinear"})) {
    if (const TensorType* weight = call.tensor("weight"))
      return 2 * made * Call::size(weight, 1) * Call::size(weight, 2);
  }
  if (call.is({"matmul", "mm", "bmm", "mv", "dot", "vdot", "inner", "linalg_matmul", "linalg_vecdot", "_scaled_mm",
               "_grouped_mm", "_scaled_grouped_mm", "_int_mm", "_weight_int8pack_mm"})) {
    if (const TensorType* left = call.first_of({"self", "input", "mat_a", "x"})) return 2 * made * Call::size(left, 1);
  }
  if (call.is({"grouped_mm_fallback"})) {
    if (const TensorType* left = call.tensor("input")) return 2 * made * Call::size(left, 1);
  }
  if (call.is({"addmm", "addmm_", "baddbmm", "baddbmm_", "addmv", "addmv_", "sspaddmm", "addbmm", "addbmm_"})) {
    const TensorType* left = call.first_of({"mat1", "batch1", "mat"});
    const double batches = call.contains("addbmm") && !call.contains("baddbmm") ? Call::first_size(left) : 1;
    if (left != nullptr) return 2 * made * Call::size(left, 1) * batches;
  }
  if (call.is({"tensordot"})) {
    double summed = 1;
    const TensorType* left = call.tensor("self");
    for (const std::int64_t dimension : call.integers("dims_self")) {
      if (left == nullptr) break;
      const auto rank = static_cast<std::int64_t>(left->sizes.size());
      const std::int64_t at = dimension < 0 ? dimension + rank : dimension;
      if (at >= 0 && at < rank) summed *= static_cast<double>(left->sizes[static_cast<std::size_t>(at)].value);
    }
    return 2 * made * summed;
  }
  return {};
}

/// "bij,bjk->bik" as the labels of each operand, and those of the result.
struct Einsum {
  std::vector<std::string> operands;
  std::string result;
  bool explicit_result = false;
};

Einsum parse_einsum(const std::string& equation) {
  Einsum parsed;
  parsed.operands.emplace_back();
  for (std::size_t i = 0; i < equation.size(); ++i) {
    const char letter = equation[i];
    if (letter == '-' || letter == '>') {
      parsed.explicit_result = true;
    } else if (letter == ',') {
      parsed.operands.emplace_back();
    } else if (letter != ' ') {
      (parsed.explicit_result ? parsed.result : parsed.operands.back()) += letter;
    }
  }
  return parsed;
}

/// Multiplies the operands from left to right; a label is summed as soon as nothing after it has it. The dimensions of
/// an ellipsis count as labels of their own.
Work einsum(const Call& call) {
  if (!call.is({"einsum"})) return {};
  const Einsum parsed = parse_einsum(call.text("equation"));
  const std::vector<const TensorType*> tensors = call.tensors("tensors");
  if (tensors.empty() || tensors.size() != parsed.operands.size()) return {};
  std::map<char, double> sizes;
  std::vector<std::set<char>> labels;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::set<char>& own = labels.emplace_back();
    const std::string& letters = parsed.operands[i];
    const auto dots = static_cast<std::size_t>(std::count(letters.begin(), letters.end(), '.'));
    const std::size_t hidden =
        tensors[i]->sizes.size() + dots - std::min(letters.size(), tensors[i]->sizes.size() + dots);
    std::size_t dimension = 0;
    for (std::size_t at = 0; at < letters.size() && dimension < tensors[i]->sizes.size(); ++at) {
      const bool ellipsis = letters[at] == '.';
      for (std::size_t k = 0; k < (ellipsis ? hidden : 1) && dimension < tensors[i]->sizes.size(); ++k, ++dimension) {
        const char label = ellipsis ? static_cast<char>('0' + static_cast<int>(k % 10)) : letters[at];
        const auto size = static_cast<double>(tensors[i]->sizes[dimension].value);
        sizes[label] = std::max(sizes[label], size);
        own.insert(label);
      }
      if (ellipsis) at += 2;
    }
  }
  double work = 0;
  std::set<char> left = labels.front();
  for (std::size_t i = 1; i < labels.size(); ++i) {
    left.insert(labels[i].begin(), labels[i].end());
    double multiplications = 1;
    for (const char label : left) multiplications *= sizes[label];
    work += 2 * multiplications;
    std::erase_if(left, [&](char label) {
      const bool later = std::any_of(labels.begin() + static_cast<std::ptrdiff_t>(i) + 1, labels.end(),
                                     [&](const std::set<char>& other) { return other.contains(label); });
      const bool wanted =
          parsed.explicit_result ? parsed.result.find(label) != std::string::npos || label <= '9' : true;
      return !later && !wanted;
    });
  }
  return work > 0 ? work : kPerElement * std::max(call.made(), call.largest_argument());
}

Work attention(const Call& call) {
  if (!call.contains("dot_product") || !call.contains("attention")) return {};
  const TensorType* query = call.tensor("query");
  const TensorType* key = call.tensor("key");
  const TensorType* value = call.tensor("value");
  if (query == nullptr || key == nullptr) return {};
  const double width = std::max(1.0, Call::size(query, 1));
  return 2 * Call::elements(query) * Call::size(key, 2) * (1 + Call::size(value == nullptr ? query : value, 1) / width);
}

/// Every weight matrix is multiplied with every row of every step; the gates are elementwise.
Work recurrence(const Call& call) {
  const bool cell = call.is({"lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"});
  if (!cell && !call.is({"lstm", "gru", "rnn_tanh", "rnn_relu", "mkldnn_rnn_layer", "_cudnn_rnn"})) return {};
  const TensorType* input = call.first_of({"input", "data"});
  if (input == nullptr) return {};
  std::vector<const TensorType*> weights = call.tensors("params");
  for (const char* const list : {"weight", "weights"}) {
    for (const TensorType* one : call.tensors(list)) weights.push_back(one);
  }
  for (const char* const name : {"w_ih", "w_hh", "weight0", "weight1"}) {
    if (const TensorType* one = call.tensor(name)) weights.push_back(one);
  }
  const double rows = Call::elements(input) / std::max(1.0, Call::size(input, 1));
  double work = 0;
  for (const TensorType* weight : weights) {
    if (weight->sizes.size() != 2) continue;
    work += rows * (2 * Call::elements(weight) + kPerElement * Call::first_size(weight) / 2);
  }
  return work > 0 ? Work(work) : Work();
}

double logarithm(double count) { return std::max(1.0, std::log2(std::max(2.0, count))); }

/// Operators that do more than go through their elements once.
Work several_passes(const Call& call) {
  const TensorType* self = call.first_of({"self", "input", "x1"});
  const double elements = std::max(call.made(), Call::elements(self));
  if (call.is({"sort", "argsort", "msort", "unique_dim", "_unique2", "unique_consecutive", "median", "quantile"}))
    return kPerElement * elements * logarithm(Call::size(self, 1));
  if (call.base().starts_with("fft_") || call.base().starts_with("_fft") || call.is({"stft", "istft"}))
    return std::max(kPerElement, 5 * logarithm(Call::size(self, 1))) * elements;
  if (call.contains("pool") && !call.integers("kernel_size").empty())
    return std::max(kPerElement * elements, 2 * call.made() * product(call.integers("kernel_size")));
  if (call.contains("bicubic")) return 4 * kPerElement * elements;
  if (call.is({"cdist", "_cdist_forward", "_euclidean_dist"}))
    return std::max(kPerElement, 3 * Call::size(self, 1)) * call.made();
  if (call.base().starts_with("linalg_") ||
      call.is({"cholesky", "inverse", "matrix_exp", "qr", "svd", "lu", "pinverse"})) {
    const bool square = call.contains("norm") || call.contains("diagonal") || call.contains("cross");
    if (!square) return 2 * elements * Call::size(self, 1);
  }
  return {};
}

/// Reads only some elements of its largest argument, or writes only some.
bool looks_up(const Call& call) {
  return call.is({"embedding", "index", "index_select", "gather", "take", "take_along_dim", "one_hot", "select_copy",
                  "slice_copy", "narrow_copy"});
}
bool writes_some(const Call& call) {
  return call.is({"index_put_", "scatter_", "scatter_add_", "scatter_reduce_", "index_add_", "index_copy_",
                  "index_fill_", "masked_scatter_"});
}

double through_memory(const Call& call, const Node& node) {
  const double made = call.made();
  if (call.contains("empty")) return 0;
  if (looks_up(call)) return kPerElement * made;
  if (call.is({"embedding_bag", "_embedding_bag"}))
    return kPerElement * Call::elements(call.tensor("indices")) * Call::size(call.tensor("weight"), 1);
  if (writes_some(call)) {
    const TensorType* written = call.first_of({"values", "src", "source"});
    return kPerElement * (written == nullptr ? made : Call::elements(written));
  }
  if (reads_size(node) || computes_number(node)) return 0;
  return kPerElement * std::max(made, call.largest_argument());
}

}  // namespace

double work_of(const Program& program, const Node& node) {
  if (node.is_control_flow())
    return over_bodies(program, node, [&](const Node& inner) { return work_of(program, inner); });
  const Call call(program, node);
  for (const auto estimate : {recurrence, convolution, matrix_product, einsum, attention, several_passes}) {
    if (const Work work = estimate(call)) return *work;
  }
  const bool drops_out = call.contains("dropout");       // a view only in evaluation
  const bool known = node.target.starts_with("aten::");  // others might share memory, but more likely compute
  if (known && may_share_memory(node.target) && !changes_first_argument(node.target) && !drops_out) return 0;
  return through_memory(call, node);
}

}  // namespace stagecraft::graph
