#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "criterion.h"
#include "data.h"
#include "exported_loss.h"
#include "options.h"
#include "stagecraft/runtime/pipeline.h"

namespace stagecraft::train {

/// Names of loss keywords: the weight of a batch among those that are accumulated for one update, and for each term
/// what it is multiplied by (see Objective::scales).
inline constexpr std::string_view kShare = "share";
inline constexpr std::string_view kScales = "scales";

/// A term of the loss, found to fit the model and the data.
struct Term {
  LossTerm text;
  /// Which leaf of the outputs it takes; none: all of them, nested as they are.
  std::optional<std::size_t> output;
  std::string targets;  ///< Their name in the data; empty: it takes none.
  CriterionOptions options;
  std::optional<std::int64_t> classes;  ///< How many the output has, if classes are counted and their number is fixed.
  bool counts_classes = false;          ///< Targets are classes, and not all have to count.
  std::shared_ptr<const ExportedLoss> program = nullptr;
};

/// What a run minimises: the mean over all rows, or over all targets that count, of a weighted sum of terms.
class Objective {
 public:
  /// Throws InvalidArgument with everything in which loss, model and data do not fit.
  Objective(const Options& options, const Pipe& pipe, const WantedData& wanted, const Data& data, at::Device device);

  /// On the CPU: a tensor, or a dict if there are several. Throws FileError for a class that the output does not have.
  [[nodiscard]] Value targets(const Data& data, const Rows& rows) const;
  /// Throws FileError like `targets`, for the first so many rows as it can look at in about a second.
  void check_classes(const Data& data) const;

  /// Indices of the outputs of the program that it takes; empty: all of them.
  [[nodiscard]] std::vector<int> outputs() const;
  /// How targets are cut into microbatches.
  [[nodiscard]] Split split() const;
  /// The loss of a microbatch, times the share of its batch if that is given as a keyword.
  [[nodiscard]] LossFunction function() const;
  /// How much a microbatch counts; empty: as many as it has rows.
  [[nodiscard]] LossWeight microbatch_weight() const;
  /// How much a batch counts in a mean over several.
  [[nodiscard]] double weight_of(const Value& targets) const;

  /// Whether terms count differently, so that each needs a scale: a sum of several, some of which leave out targets.
  [[nodiscard]] bool needs_scales() const;
  /// For each term: its targets that count. For a sum of terms, see `scales`.
  [[nodiscard]] std::vector<double> counts_of(const Value& targets) const;
  /// For each term, the rows of an update over its targets that count. `counts`: of all batches of the update together,
  /// then their rows.
  [[nodiscard]] static at::Tensor scales(const std::vector<double>& counts);

 private:
  std::vector<Term> terms_;
  graph::Tree outputs_;                                            // of the model
  std::vector<std::pair<std::string, std::int64_t>> target_rows_;  // names, and along which dimension rows are
  bool counts_targets_ = false;  // a microbatch counts as its targets that are not ignored
};

/// The loss of a step; none if no target of it counts.
std::optional<double> counted_loss(const StepResult& result);

}  // namespace stagecraft::train
