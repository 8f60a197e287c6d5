#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stagecraft/runtime/options.h"
#include "stagecraft/runtime/steering.h"
#include "stagecraft/runtime/world.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/timeline.h"
#include "stagecraft/stage/stage.h"

/// Training over a pipeline of stages.
namespace stagecraft {

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

/// A model that can be cut for the schedule of a pipeline: `stages_of` returns this rank's stages, and completes the
/// options. All ranks call it.
template <typename Model>
concept MakesStages = requires(const Model& model, World& world, PipelineOptions& options) {
  { stages_of(model, world, options) } -> std::same_as<std::vector<Stage>>;
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
  /// Cuts the model for the schedule, and takes this rank's stages: a torch::nn::Sequential, LazyLayers, an exported
  /// Pipe, or whatever has a function `stages_of`.
  template <MakesStages Model>
  Pipeline(World& world, const Model& model, PipelineOptions options)
      : Pipeline(world, [&] {
          std::vector<Stage> stages = stages_of(model, world, options);
          return std::pair(std::move(stages), std::move(options));
        }()) {}
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

  /// With "auto": what chooses the schedule (see auto_report in automatic.h). Null otherwise.
  [[nodiscard]] const Steering* steering() const;

  /// Runs `handler` instead of every action of a kind.
  void on(ActionKind kind, std::function<void(const ActionContext&)> handler);

  /// Starts recording (or stops); the timeline is that of the last step of this rank.
  void record_timeline(bool record);
  [[nodiscard]] const Timeline& timeline() const;
  /// The timelines of all ranks, by rank, on rank `to`; nothing on the others. All ranks call it.
  [[nodiscard]] std::vector<Timeline> collect_timelines(RankId to) const;

 private:
  Pipeline(World& world, std::pair<std::vector<Stage>, PipelineOptions> both)
      : Pipeline(world, std::move(both.first), std::move(both.second)) {}

  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft
