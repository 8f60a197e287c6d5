#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/passes/pass.h"
#include "stagecraft/runtime/auto_schedule.h"
#include "stagecraft/runtime/wiring.h"
#include "stagecraft/runtime/world.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/timeline.h"
#include "stagecraft/stage/microbatches.h"
#include "stagecraft/stage/stage.h"

/// Training over a pipeline of stages.
namespace stagecraft {

/// The loss of one microbatch, a scalar: of the last stage's output, the target cut to the microbatch, and the keywords
/// given to `step` for the loss.
using LossFunction = std::function<at::Tensor(const Value& output, const Value& target, const ValueDict& keywords)>;

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

/// One action about to run; see `Pipeline::on`.
class ActionContext {
 public:
  ActionContext(const Stage& stage, const Action& action, const std::function<void()>& run)
      : stage_(stage), action_(action), run_(run) {}

  [[nodiscard]] const Stage& stage() const { return stage_; }
  [[nodiscard]] const Action& action() const { return action_; }
  /// What the action does by itself. A handler that never calls it replaces it.
  void run() const { run_(); }

 private:
  const Stage& stage_;
  const Action& action_;
  const std::function<void()>& run_;
};

/// A parameter that several stages have under one name: equal at the start, and kept equal, since each gets the sum of
/// the gradients of all.
struct Tie {
  std::string parameter;
  std::vector<int> stages;
};

struct PipelineOptions {
  /// The name of a known schedule ("1F1B", "InterleavedZeroBubble", ...), the path of a CSV file, or "auto": the
  /// pipeline starts with a plain schedule for where its stages are, records some steps, plans a better one, measures
  /// both in turns and keeps the faster. Results do not depend on it. See `auto_report`.
  std::string schedule = "1F1B";
  /// A schedule of your own, compute-only or lowered, instead of a name.
  std::optional<Schedule> plan = std::nullopt;
  /// 0: one, or as many as the plan or file has.
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

class StepResult {
 public:
  /// By microbatch; empty on ranks that do not have them.
  std::vector<at::Tensor> losses;
  /// What each loss counts in the loss of the batch.
  std::vector<double> weights;
  /// The merged output of the last stage, on its rank and if asked for; none otherwise.
  Value output;

  [[nodiscard]] bool has_loss() const { return !losses.empty(); }
  /// The loss of the whole batch; with replicas and without `broadcast_loss`, of this one's share. NaN when no
  /// microbatch counts, as a mean over nothing is. Throws InvalidArgument on a rank that does not have it.
  [[nodiscard]] double loss() const;
};

/// What one stage makes of one microbatch.
struct StageShapes {
  StageId stage;
  MicrobatchId microbatch;
  std::vector<TensorSpec> outputs;
};

/// The stages of one rank, ready to run a schedule together with those of the other ranks. All ranks make it, and call
/// `step` and `eval`, in the same order.
///
/// In a world of replicas every replica gives `step` its own share of the batch (see World::share_of), and gradients
/// are those of the whole batch, as one device would have them: parameters, and buffers such as running statistics,
/// start as those of replica 0 and stay the same on all.
///
/// After an error in a step every rank throws: the rank that failed its StepError, the others AbortedError with the
/// same message. Gradients may have been accumulated in part; nothing else is left over, and the next step works.
/// With schedule "auto", one step also plans; should that fail, it throws on all ranks after its gradients are
/// complete, and the schedule stays what it was at the beginning.
class Pipeline {
 public:
  /// Throws InvalidArgument when stages, ranks and schedule do not fit, ScheduleError when the schedule must not run;
  /// on all ranks alike.
  Pipeline(World& world, std::vector<Stage> stages, PipelineOptions options);
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  /// Forward, loss and backward of one batch; gradients are added to the parameters' .grad. `arguments` are needed on
  /// the rank of the first stage, the target on the rank of the last.
  StepResult step(const ValueList& arguments = {}, const StepOptions& options = {});
  /// The same with microbatches that are cut already, one list of arguments and one target each.
  StepResult step_microbatches(const std::vector<ValueList>& arguments, const std::vector<Value>& targets = {},
                               const StepOptions& options = {});
  /// Forward alone, without graphs, in evaluation mode. Returns the outputs on the rank of the last stage, and the
  /// losses when there is a target.
  StepResult eval(const ValueList& arguments = {}, const StepOptions& options = {});

  /// What a step with these inputs would pass between the stages, found without computing: stages run on the meta
  /// device, where tensors have shapes and no data, or on zeros where an operation needs data. Parameters, buffers,
  /// gradients and random state stay as they are. Returns the outputs of this rank's stages for every microbatch.
  /// Throws like `step` when the shapes do not fit.
  std::vector<StageShapes> infer_shapes(const ValueList& arguments = {}, const StepOptions& options = {});

  /// Of this rank's stages; one that several of them share is listed once.
  [[nodiscard]] std::vector<at::Tensor> parameters() const;
  [[nodiscard]] NamedTensors named_parameters() const;
  [[nodiscard]] const std::vector<Stage>& stages() const;
  [[nodiscard]] bool has_first_stage() const;
  [[nodiscard]] bool has_last_stage() const;
  /// Training steps so far, failed ones included. The number of a step is part of what fixes its randomness: a run that
  /// goes on where another stopped sets it.
  [[nodiscard]] std::uint64_t steps() const;
  void set_steps(std::uint64_t steps);
  /// As it is executed: lowered. With "auto", that of the next step.
  [[nodiscard]] const Schedule& schedule() const;

  /// How far "auto" has come, and what it has gained; the same on all ranks after a step. Throws InvalidArgument when
  /// the schedule is another.
  [[nodiscard]] const AutoReport& auto_report() const;

  /// Runs `handler` instead of every action of a kind.
  void on(ActionKind kind, std::function<void(const ActionContext&)> handler);

  /// Starts recording (or stops); the timeline is that of the last step of this rank.
  void record_timeline(bool record);
  [[nodiscard]] const Timeline& timeline() const;
  /// The timelines of all ranks, by rank, on rank `to`; nothing on the others. All ranks call it.
  [[nodiscard]] std::vector<Timeline> collect_timelines(RankId to) const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft
