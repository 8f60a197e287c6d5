#include "objective.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "objective_check.h"
#include "stagecraft/core/error.h"

namespace stagecraft::train {
namespace {

/// The leaf of a value with the structure of the tree.
const Value& leaf_of(const Value& value, const graph::Tree& tree, std::size_t leaf) {
  if (tree.kind == graph::Tree::Kind::kLeaf) return value;
  for (std::size_t i = 0; i < tree.children.size(); ++i) {
    const auto here = static_cast<std::size_t>(tree.children[i].leaves());
    if (leaf < here)
      return leaf_of(value.is_list() ? value.list().at(i) : value.dict().at(i).second, tree.children[i], leaf);
    leaf -= here;
  }
  throw InternalError("the outputs of the model have another structure than the program says");
}

/// The bits of a product with a number, but a graph that is replayed multiplies by what the tensor holds then.
at::Tensor times(const at::Tensor& loss, const at::Tensor& factor) {
  const at::ScalarType type = at::toOpMathType(loss.scalar_type());
  return (loss.to(type) * factor.to(type)).to(loss.scalar_type());
}

const at::Tensor& targets_of(const Term& term, const Value& targets) {
  return targets.is_dict() ? targets.at(term.targets).tensor() : targets.tensor();
}

const Value* find(const ValueDict& keywords, std::string_view name) {
  for (const auto& [key, value] : keywords) {
    if (key == name) return &value;
  }
  return nullptr;
}

/// Throws where a class is out of range.
void require_classes(const Term& term, const Data& data, const Rows& rows, const at::Tensor& targets,
                     std::int64_t along) {
  if (!term.counts_classes || !term.classes || targets.numel() == 0) return;
  const at::Tensor is_unknown = targets.lt(0).logical_or_(targets.ge(*term.classes)).logical_and_(targets != kIgnored);
  if (!is_unknown.any().item<bool>()) return;
  const at::Tensor first = is_unknown.nonzero()[0];  // its place in each dimension
  const std::int64_t row = rows[static_cast<std::size_t>(first[along].item<std::int64_t>())];
  const std::string what = std::to_string(targets.masked_select(is_unknown)[0].item<std::int64_t>()) + " (";
  const bool is_token = data.tokens_per_row() > 0;  // the targets of tokens are those that follow them
  const std::string where = data.place_of(term.targets, row, first[-1].item<std::int64_t>() + (is_token ? 1 : 0));
  throw FileError(data.path(), (is_token ? "token " : "there is a target of class ") + what + where +
                                   "), but the output has " + std::to_string(*term.classes) +
                                   " classes: they count from 0, and -100 does not count");
}

double count_of(const at::Tensor& targets) { return (targets != kIgnored).sum().item<double>(); }

/// One term of the loss of a microbatch. With `scale`, terms of classes are a sum over what counts, divided by the
/// rows.
at::Tensor value_of(const Term& term, const Value& output, const graph::Tree& tree, const Value& targets,
                    const at::Tensor& scale) {
  const Value& own = term.output ? leaf_of(output, tree, *term.output) : output;
  if (term.text.criterion == Criterion::kOutput) return own.tensor();
  const at::Tensor& target = targets_of(term, targets);
  if (term.program) return (*term.program)(own, target);
  if (!scale.defined() || !term.counts_classes)
    return mean_loss(term.text.criterion, own.tensor(), target, term.options);
  const at::Tensor sum = summed_loss(term.text.criterion, own.tensor(), target, term.options);
  return times(sum, scale) / static_cast<double>(own.tensor().size(term.options.row_dimension));
}

}  // namespace

Objective::Objective(const Options& options, const Pipe& pipe, const WantedData& wanted, const Data& data,
                     at::Device device)
    : outputs_(pipe.program().result) {
  ObjectiveCheck check(options, pipe, wanted, data, device);
  terms_ = check.terms();
  target_rows_ = check.target_rows();
  const bool usual = terms_.size() == 1 && terms_.front().counts_classes;
  counts_targets_ = options.loss_weight == "counted" || (options.loss_weight == "auto" && usual);
}

Value Objective::targets(const Data& data, const Rows& rows) const {
  // A model that returns its loss takes no targets: only the number of rows counts.
  if (target_rows_.empty()) return at::zeros({static_cast<std::int64_t>(rows.size())}, at::kLong);
  ValueDict dict;
  for (const auto& [name, along] : target_rows_) dict.emplace_back(name, data.targets(name, rows, along));
  const Value all = dict.size() == 1 ? dict.front().second : Value(dict);
  for (const Term& term : terms_) {
    for (const auto& [name, along] : target_rows_) {
      if (name == term.targets) require_classes(term, data, rows, targets_of(term, all), along);
    }
  }
  return all;
}

void Objective::check_classes(const Data& data) const {
  constexpr std::int64_t kMostNumbers = 1 << 27;
  constexpr std::int64_t kAtOnce = 1 << 20;
  std::int64_t per_row = 1;
  for (const auto& [name, along] : target_rows_) {
    const std::vector<std::int64_t> sizes = data.spec_of_targets(name).sizes;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (static_cast<std::int64_t>(d) != along) per_row *= std::max<std::int64_t>(1, sizes[d]);
    }
  }
  const std::int64_t rows = std::min(data.rows(), std::max<std::int64_t>(1, kMostNumbers / per_row));
  const std::int64_t step = std::max<std::int64_t>(1, kAtOnce / per_row);
  for (std::int64_t first = 0; first < rows; first += step) {
    Rows some;
    for (std::int64_t row = first; row < std::min(rows, first + step); ++row) some.push_back(row);
    static_cast<void>(targets(data, some));
  }
}

std::vector<int> Objective::outputs() const {
  std::vector<int> indices;
  for (const Term& term : terms_) {
    if (!term.output) return {};
    indices.push_back(static_cast<int>(*term.output));
  }
  return indices;
}

Split Objective::split() const {
  if (target_rows_.size() == 1) return Split::along(target_rows_.front().second);
  std::vector<Split::Dimension> dimensions;
  for (const auto& [name, along] : target_rows_) dimensions.emplace_back(along);
  return dimensions.empty() ? Split() : Split::each(std::move(dimensions));
}

LossFunction Objective::function() const {
  return [terms = terms_, tree = outputs_](const Value& output, const Value& target, const ValueDict& keywords) {
    const Value* const scales = find(keywords, kScales);
    at::Tensor total;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const at::Tensor scale =
          scales == nullptr ? at::Tensor() : scales->tensor().select(0, static_cast<std::int64_t>(i));
      at::Tensor own = value_of(terms[i], output, tree, target, scale);
      if (terms[i].text.weight != 1) own = own * terms[i].text.weight;
      total = total.defined() ? total + own : own;
    }
    const Value* const share = find(keywords, kShare);
    return share == nullptr ? total : times(total, share->tensor());
  };
}

LossWeight Objective::microbatch_weight() const {
  if (!counts_targets_) return {};
  return [term = terms_.front()](const Value& target) { return count_of(targets_of(term, target)); };
}

double Objective::weight_of(const Value& targets) const {
  if (counts_targets_) return count_of(targets_of(terms_.front(), targets));
  const std::int64_t along = target_rows_.empty() ? 0 : target_rows_.front().second;
  const at::Tensor& first = targets.is_dict() ? targets.dict().front().second.tensor() : targets.tensor();
  return static_cast<double>(first.size(along));
}

bool Objective::needs_scales() const {
  return terms_.size() > 1 &&
         std::any_of(terms_.begin(), terms_.end(), [](const Term& term) { return term.counts_classes; });
}

std::vector<double> Objective::counts_of(const Value& targets) const {
  std::vector<double> counts;
  for (const Term& term : terms_) counts.push_back(term.counts_classes ? count_of(targets_of(term, targets)) : 0);
  counts.push_back(weight_of(targets));
  return counts;
}

at::Tensor Objective::scales(const std::vector<double>& counts) {
  std::vector<double> scales;
  for (std::size_t i = 0; i + 1 < counts.size(); ++i) scales.push_back(counts[i] > 0 ? counts.back() / counts[i] : 0);
  return at::tensor(scales, at::kDouble);
}

std::optional<double> counted_loss(const StepResult& result) {
  for (const double weight : result.weights) {
    if (weight != 0) return result.loss();
  }
  return std::nullopt;
}

}  // namespace stagecraft::train
