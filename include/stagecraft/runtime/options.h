#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "stagecraft/passes/pass.h"
#include "stagecraft/runtime/auto_schedule.h"
#include "stagecraft/runtime/schedule_choice.h"
#include "stagecraft/runtime/wiring.h"
#include "stagecraft/stage/microbatches.h"
#include "stagecraft/stage/value.h"

/// What a user says about a pipeline and about a step.
namespace stagecraft {

/// The loss of one microbatch, a scalar: of the last stage's output, the target cut to the microbatch, and the keywords
/// given to `step` for the loss. A function of two plain tensors, output and target, is taken too.
class LossFunction {
 public:
  using Full = std::function<at::Tensor(const Value& output, const Value& target, const ValueDict& keywords)>;

  LossFunction() = default;
  template <typename Function>
  requires std::is_invocable_r_v<at::Tensor, const Function&, const Value&, const Value&, const ValueDict&>
  LossFunction(Function function) : full_(std::move(function)) {}  // NOLINT(google-explicit-constructor)
  template <typename Function>
  requires(!std::is_invocable_v<const Function&, const Value&, const Value&, const ValueDict&> &&
           std::is_invocable_r_v<at::Tensor, const Function&, const at::Tensor&, const at::Tensor&>)
      LossFunction(Function function)  // NOLINT(google-explicit-constructor)
      : full_([function = std::move(function)](const Value& output, const Value& target, const ValueDict&) {
          return function(output.tensor(), target.tensor());
        }) {}

  explicit operator bool() const { return static_cast<bool>(full_); }
  at::Tensor operator()(const Value& output, const Value& target, const ValueDict& keywords) const {
    return full_(output, target, keywords);
  }

 private:
  Full full_;
};

enum class LossScale {
  /// The loss function averages over the rows of its microbatch, or over what `loss_weight` counts: gradients are those
  /// of the average over the whole batch.
  kMean,
  /// The loss function adds up rows: gradients are those of the sum.
  kSum,
};

/// How much a microbatch counts in the loss of the batch, from its target: at least 0. One that counts 0 has no loss
/// and gives gradients of 0; the loss function is not called for it.
using LossWeight = std::function<double(const Value& target)>;
/// Counts the targets that are not `ignored`: for a loss that averages over these, such as cross_entropy with its
/// ignore_index.
LossWeight counted_targets(std::int64_t ignored = -100);

/// A parameter that several stages have under one name: equal at the start, and kept equal, since each gets the sum of
/// the gradients of all.
struct Tie {
  std::string parameter;
  std::vector<StageId> stages;
};

/// In place of an option that is gone: says what to write instead.
struct GonePlan {
  GonePlan() = default;
  template <typename Given>
  GonePlan(const Given& /*given*/) {  // NOLINT(google-explicit-constructor)
    static_assert(!sizeof(Given), "PipelineOptions::plan is gone: write .schedule = your_schedule");
  }
};

enum class Balance {
  kLayers,      ///< As many layers in one stage as in another.
  kParameters,  ///< As many bytes of parameters.
  kTime,        ///< As much time, measured on the first rank with SplitOptions::sample.
};

/// Where a Sequential is cut; all of its layers count, an embedding at the beginning and a head at the end among them.
struct SplitOptions {
  /// What the stages are to have the same of, as near as whole layers allow: the largest stage is as small as it can
  /// be. Unless the cuts are given:
  Balance balance = Balance::kLayers;
  /// Layers of each stage.
  std::vector<std::int64_t> layers = {};
  /// Or the first layers of stages 1, 2, ..., counted from 0.
  std::vector<std::int64_t> cuts = {};
  /// To measure with: an input of the model, such as a microbatch, where its parameters are. Only the first rank needs
  /// it.
  at::Tensor sample = {};

  /// Whether it says anything.
  [[nodiscard]] bool is_given() const {
    return balance != Balance::kLayers || !layers.empty() || !cuts.empty() || sample.defined();
  }
};

struct PipelineOptions {
  /// The name of a known schedule ("1F1B", "InterleavedZeroBubble", ...), the path of a CSV file, a schedule of your
  /// own (compute-only or lowered), or "auto": the pipeline starts with a plain schedule for where its stages are,
  /// records some steps, plans a better one, measures both in turns and keeps the faster. Results do not depend on it.
  /// See `auto_report`.
  ScheduleChoice schedule = "1F1B";
  GonePlan plan = {};
  /// For a schedule by name: stages on each rank; 0: as many as the schedule usually has. Where stages are given, it is
  /// their number.
  int stages_per_rank = 0;
  /// Needed, unless the schedule is your own or from a file, which knows it.
  int microbatches = 0;
  /// Needed for training; evaluation does without.
  LossFunction loss = {};
  LossScale loss_scale = LossScale::kMean;
  /// With kMean: over how much the loss function has averaged. Unless given, its target's rows. Weights are known
  /// before the first backward, and those of all microbatches and replicas count: the loss and gradients are those of
  /// the whole batch, however it is cut.
  LossWeight loss_weight = {};
  /// Skip connections and the like; stages without edges take what the stage before returns.
  std::vector<Edge> edges = {};
  /// Their gradients are summed at the end of every step.
  std::vector<Tie> ties = {};
  /// By position; arguments beyond the list are cut along dimension 0.
  std::vector<Split> argument_splits = {};
  /// By name; others are cut along dimension 0.
  std::map<std::string, Split> keyword_splits = {};
  Split target_split = {};
  /// Puts the outputs of the last stage together.
  Reducer merge_outputs = concatenate();
  /// Give every rank the losses of all replicas, not only the one with the last stage those of its own.
  bool broadcast_loss = false;
  /// Fixes the randomness of every (step, stage, microbatch).
  std::uint64_t seed = 0;
  /// How a compute-only schedule is lowered.
  std::string passes = std::string(kDefaultLowering);
  /// With replicas: small gradients are averaged together up to this size, large ones in pieces of it.
  std::int64_t bucket_bytes = 16 << 20;
  /// With schedule "auto".
  AutoOptions automatic = {};
  /// How a Sequential is cut into stages. Refused where there is none.
  SplitOptions split = {};
};

struct StepOptions {
  /// Needed on the rank of the last stage.
  Value target = {};
  /// Keyword inputs for the stages of this rank.
  ValueDict keywords = {};
  /// Given to the loss function as they are.
  ValueDict loss_keywords = {};
  bool return_outputs = false;
};

}  // namespace stagecraft
