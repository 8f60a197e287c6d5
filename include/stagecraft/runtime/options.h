#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "stagecraft/data_parallel/shard.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/runtime/auto_schedule.h"
#include "stagecraft/runtime/graph.h"
#include "stagecraft/runtime/precision.h"
#include "stagecraft/runtime/schedule_choice.h"
#include "stagecraft/runtime/wiring.h"
#include "stagecraft/stage/microbatches.h"
#include "stagecraft/stage/recompute.h"
#include "stagecraft/stage/value.h"

/// Options of a pipeline and of a step.
namespace stagecraft {

/// Computes the loss of one microbatch, a scalar, from the last stage's output, the microbatch's part of the target,
/// and the `loss_keywords` of the step. May also be a function of two tensors, output and target.
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
  /// The loss function sums over rows. Gradients are those of the sum over the whole batch.
  kSum,
};

/// The weight of a microbatch in the loss of the batch, at least 0, computed from its target. With weight 0 the loss
/// function is not called, and gradients are 0.
using LossWeight = std::function<double(const Value& target)>;
/// Counts the targets that are not `ignored`: for a loss that averages over these, such as cross_entropy with its
/// ignore_index.
LossWeight counted_targets(std::int64_t ignored = -100);

/// A parameter that several stages have under one name. It starts equal in all of them and stays equal, because each
/// gets the sum of the gradients of all.
struct Tie {
  std::string parameter;
  std::vector<StageId> stages;
};

enum class Balance {
  kLayers,      ///< The number of layers.
  kParameters,  ///< Bytes of parameters.
  kTime,        ///< Time, measured on the first rank with SplitOptions::sample.
};

/// How a Sequential is cut into stages. All of its layers count, also an embedding at the beginning and a head at the
/// end. Give at most one of `balance`, `layers` and `cuts`.
struct SplitOptions {
  /// What is balanced between the stages: the largest stage is made as small as whole layers allow.
  Balance balance = Balance::kLayers;
  /// The number of layers of each stage.
  std::vector<std::int64_t> layers = {};
  /// The first layer of each of the stages 1, 2, ...; layers are counted from 0.
  std::vector<std::int64_t> cuts = {};
  /// For Balance::kTime: an input of the model, such as a microbatch, on the device of its parameters. Only needed on
  /// the first rank.
  at::Tensor sample = {};

  /// Whether any option is set.
  [[nodiscard]] bool is_given() const {
    return balance != Balance::kLayers || !layers.empty() || !cuts.empty() || sample.defined();
  }
};

struct PipelineOptions {
  /// The name of a known schedule ("1F1B", "InterleavedZeroBubble", ...), the path of a CSV file, a schedule of your
  /// own (compute-only or lowered), or "auto": the pipeline starts with a plain schedule for its placement, records
  /// some steps, plans a better schedule, measures both in turns and keeps the faster. Results do not depend on the
  /// choice. See `auto_report`.
  ScheduleChoice schedule = "1F1B";
  /// Stages on each rank, for a schedule given by name. 0: the schedule's usual number, or that of the given stages.
  int stages_per_rank = 0;
  /// Number of microbatches. Required, unless the schedule is your own or from a file.
  int microbatches = 0;
  /// Required for training. Without it `step` runs forwards alone.
  LossFunction loss = {};
  LossScale loss_scale = LossScale::kMean;
  /// With kMean: the number of items that the loss function averages over. By default, the rows of the target. Weights
  /// of all microbatches and replicas are known before the first backward: the loss and gradients are those of the
  /// whole batch, however it is cut.
  LossWeight loss_weight = {};
  /// Skip connections and the like; stages without edges take what the stage before returns.
  std::vector<Edge> edges = {};
  /// Tied parameters: their gradients are summed at the end of every step.
  std::vector<Tie> ties = {};
  /// How arguments are cut, by position; those beyond the list are cut along dimension 0.
  std::vector<Split> argument_splits = {};
  /// How keyword inputs are cut, by name; others are cut along dimension 0.
  std::map<std::string, Split> keyword_splits = {};
  Split target_split = {};
  /// Joins the outputs of the last stage.
  Reducer merge_outputs = concatenate();
  /// Give every rank the losses of all replicas. Otherwise only the rank of the last stage has losses, those of its
  /// replica.
  bool broadcast_loss = false;
  /// Seed of the random numbers of every (step, stage, microbatch).
  std::uint64_t seed = 0;
  /// The passes that lower a compute-only schedule. With Shard::kParameters, `unshard_reshard=n` decides how many
  /// stages of a rank are whole at a time; by default two.
  std::string passes = std::string(kDefaultLowering);
  /// With replicas: small gradients are averaged together in buckets of up to this size, large ones in pieces of it.
  std::int64_t bucket_bytes = 16 << 20;
  /// With replicas: what they share among them instead of holding copies. The optimizer must be made from
  /// Pipeline::parameters, and work element by element (SGD, Adam, AdamW, RMSprop, Adagrad; not LBFGS).
  Shard shard = Shard::kNone;
  /// Parameters that are not trained, by patterns of their names ("embedding.*"): their requires_grad is set to false.
  std::vector<std::string> freeze = {};
  /// In which floating-point types modules compute, and the optimizer updates.
  Precision precision = {};
  /// Steps whose gradients are added up for one update of the parameters; the last of them reduces over replicas and
  /// ties, and only then are gradients complete. Counted by Pipeline::steps. After a failed step, zero the gradients
  /// and repeat from the first step of the update (Pipeline::set_steps).
  int accumulate = 1;
  /// What every stage drops after its forward and computes again before its backward, unless its StageOptions say
  /// otherwise.
  Recompute recompute = {};
  /// On a CUDA device: capture each kind of training step once and replay it, which takes the host almost no time.
  /// Results do not depend on it. Gradients and the parameters' memory stay where they are; see docs/guide/gpus.md for
  /// what a replay does not see. Steps that cannot be captured run as usual, and Pipeline::captured says why.
  GraphChoice graph = {};
  /// How many microbatches a captured step without messages may compute side by side, each of them in memory of its
  /// own. 0: up to 8 where stages hand little to each other (8 MiB per microbatch), otherwise 1.
  int lanes = 0;
  /// With schedule "auto".
  AutoOptions automatic = {};
  /// How a Sequential is cut into stages. The pipeline throws InvalidArgument for it if there is no Sequential.
  SplitOptions split = {};
};

struct StepOptions {
  /// Required for training on the rank of the last stage.
  Value target = {};
  /// Keyword inputs for the stages of this rank.
  ValueDict keywords = {};
  /// Further ones that are cut already: one dictionary per microbatch, or none.
  std::vector<ValueDict> microbatch_keywords = {};
  /// Passed to the loss function uncut.
  ValueDict loss_keywords = {};
  bool return_outputs = false;
};

}  // namespace stagecraft
