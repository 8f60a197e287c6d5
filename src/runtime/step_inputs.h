#pragma once

#include <string>
#include <vector>

#include "parameter_store.h"
#include "stagecraft/runtime/pipeline.h"

namespace stagecraft {

enum class StepKind {
  kTraining,
  kForward,     // alone, in training mode
  kEvaluation,  // forward alone, in evaluation mode
  kShapes,      // forward alone, on the meta device without data
};
/// Whether Pipeline::steps counts it.
inline bool is_counted(StepKind kind) { return kind == StepKind::kTraining || kind == StepKind::kForward; }

/// The inputs of one step on one rank, cut into microbatches.
struct StepInputs {
  StepKind kind = StepKind::kTraining;
  std::uint64_t number = 0;               // number of the step, part of the random seed
  std::vector<ValueList> arguments;       // by microbatch; of the first stage
  std::vector<ValueDict> keywords;        // by microbatch
  std::vector<Value> targets;             // by microbatch; empty when there are none
  std::vector<std::int64_t> rows;         // by microbatch, of the arguments; empty if unknown or cut by hand
  std::vector<std::int64_t> target_rows;  // by microbatch, of the targets; empty if unknown or cut by hand
  std::vector<std::int64_t> loss_rows;    // of the targets, however they are cut: what a mean loss is taken over
  int first_microbatch = 0;               // number of the first microbatch, counted over all replicas
  const ValueDict* loss_keywords = nullptr;
  bool keep_outputs = false;
  ParameterStore::Step update;  // its place among the steps of one update

  template <typename Visit>
  void for_each_tensor(const Visit& visit) const {
    for (const ValueList& list : arguments) {
      for (const Value& value : list) value.for_each_tensor(visit);
    }
    for (const ValueDict& dict : keywords) {
      for (const auto& [name, value] : dict) value.for_each_tensor(visit);
    }
    for (const Value& value : targets) value.for_each_tensor(visit);
    if (loss_keywords == nullptr) return;
    for (const auto& [name, value] : *loss_keywords) value.for_each_tensor(visit);
  }
  [[nodiscard]] bool training() const { return kind == StepKind::kTraining; }
  [[nodiscard]] bool only_shapes() const { return kind == StepKind::kShapes; }
};

/// Cuts a batch into the microbatches that the stages of one rank need. Throws InvalidArgument when inputs that are cut
/// evenly have different numbers of rows.
class InputSplitter {
 public:
  /// `has_first`, `has_last`: whether the rank has the first stage, and the last one.
  InputSplitter(const PipelineOptions& options, int microbatches, bool has_first, bool has_last)
      : options_(options), microbatches_(microbatches), has_first_(has_first), has_last_(has_last) {}

  void split_batch(StepInputs& inputs, const ValueList& arguments, const StepOptions& options) const;
  /// Takes inputs that are cut already: one list of arguments and one target per microbatch.
  void take_microbatches(StepInputs& inputs, const std::vector<ValueList>& arguments, const std::vector<Value>& targets,
                         const StepOptions& options) const;

 private:
  /// Rows by microbatch of the inputs that are cut evenly, which must all have the same.
  struct Rows {
    std::string what;  // "argument 0"
    std::vector<std::int64_t> sizes;
  };
  /// Whether a value is cut into equal parts, not replicated or cut into given sizes.
  [[nodiscard]] bool is_cut_evenly(const Split& how) const {
    return how.dimension.has_value() && how.sizes.empty() && microbatches_ > 1;
  }
  std::vector<Value> cut(const Value& value, const Split& how, const std::string& what, Rows& rows) const;
  void split_keywords(StepInputs& inputs, const ValueDict& keywords, Rows& rows) const;
  void add_keywords(StepInputs& inputs, const std::vector<ValueDict>& by_microbatch) const;
  void require_count(std::size_t got, const char* what) const;

  const PipelineOptions& options_;
  int microbatches_;
  bool has_first_;
  bool has_last_;
};

}  // namespace stagecraft
