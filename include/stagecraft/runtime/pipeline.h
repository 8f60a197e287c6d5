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

namespace torch::optim {
class Optimizer;
}

/// Training over a pipeline of stages.
namespace stagecraft {

class Masters;

/// One action about to run; see `Pipeline::on`.
class ActionContext {
 public:
  ActionContext(const Stage& stage, const Action& action, const std::function<void()>& run)
      : stage_(stage), action_(action), run_(run) {}

  [[nodiscard]] const Stage& stage() const { return stage_; }
  [[nodiscard]] const Action& action() const { return action_; }
  /// Runs the action. A handler that does not call it replaces the action.
  void run() const { run_(); }

 private:
  const Stage& stage_;
  const Action& action_;
  const std::function<void()>& run_;
};

class StepResult {
 public:
  /// By microbatch; empty on ranks without losses (see PipelineOptions::broadcast_loss).
  std::vector<at::Tensor> losses;
  /// The weight of each loss in the loss of the batch.
  std::vector<double> weights;
  /// The merged output of the last stage, on its rank and if asked for; none otherwise.
  Value output;

  [[nodiscard]] bool has_loss() const { return !losses.empty(); }
  /// The loss of the whole batch; with replicas and without `broadcast_loss`, of this replica's share. NaN when all
  /// weights are 0. Throws InvalidArgument on a rank without losses.
  [[nodiscard]] double loss() const;
};

/// Types and shapes of the outputs of one stage for one microbatch.
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

/// Runs a schedule over the stages of this rank, together with the other ranks. All ranks make the pipeline, and call
/// `step` and `eval` in the same order.
///
/// With replicas, every replica gives `step` its own share of the batch (see World::share_of). Gradients are those of
/// the whole batch, as on one device. Parameters, and buffers such as running statistics, start as those of replica 0
/// and stay the same on all replicas.
///
/// After an error in a step, every rank throws: the rank that failed its StepError, the others AbortedError with the
/// same message. Gradients may be partly accumulated; otherwise the failed step leaves nothing behind, and the next one
/// works. With schedule "auto", one step also plans; if planning fails, that step throws on all ranks after its
/// gradients are complete, and the starting schedule stays.
class Pipeline {
 public:
  /// Throws on all ranks: InvalidArgument when stages, ranks and schedule do not fit, ScheduleError when the schedule
  /// is not valid for the transport.
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

  /// Runs forward, loss and backward of one batch, and adds gradients to the parameters' .grad. `arguments` are needed
  /// on the rank of the first stage, the target on the rank of the last. Without PipelineOptions::loss it runs the
  /// forward alone, without graphs but in training mode, and returns the outputs on the rank of the last stage.
  StepResult step(const ValueList& arguments = {}, const StepOptions& options = {});
  /// Like `step`, with a batch that is already cut: one list of arguments and one target per microbatch.
  StepResult step_microbatches(const std::vector<ValueList>& arguments, const std::vector<Value>& targets = {},
                               const StepOptions& options = {});
  /// Runs the forward alone, without graphs and in evaluation mode. Returns the outputs on the rank of the last stage,
  /// and the losses when there is a target.
  StepResult eval(const ValueList& arguments = {}, const StepOptions& options = {});
  /// Like `eval`, with a batch that is already cut.
  StepResult eval_microbatches(const std::vector<ValueList>& arguments, const std::vector<Value>& targets = {},
                               const StepOptions& options = {});

  /// Finds the outputs of this rank's stages for every microbatch without computing them: stages run on the meta
  /// device, where tensors have shapes and no data, or on zeros where an operation needs data. Parameters, buffers,
  /// gradients and random state stay as they are. Throws like `step` when the shapes do not fit.
  std::vector<StageShapes> infer_shapes(const ValueList& arguments = {}, const StepOptions& options = {});

  /// What an optimizer of this rank updates: the parameters of its stages, one that several share listed once. With
  /// PipelineOptions::shard, this replica's part of each, as a vector; with `precision`, of another type.
  [[nodiscard]] std::vector<at::Tensor> parameters() const;
  [[nodiscard]] NamedTensors named_parameters() const;
  /// Checks an optimizer of `parameters`, of which there may be several; required before the first step if these are
  /// not the modules' own (PipelineOptions::shard, `precision`). Throws InvalidArgument when it has other tensors, such
  /// as the module's own parameters, or is not known to work element by element, which a part of the parameters needs;
  /// `is_element_wise` vouches for an optimizer of your own.
  void attach(const torch::optim::Optimizer& optimizer, bool is_element_wise = false);
  /// If `parameters` are not the modules' own: gives those the values that `parameters` have now, whole, until
  /// the next step. Otherwise they may be those before the last update of the optimizer, or have no data at all. Called
  /// by all ranks.
  void refresh_modules();
  /// How the modules' parameters are made from `parameters`; null if these are the same.
  [[nodiscard]] const Masters* masters() const;
  [[nodiscard]] World& world() const;
  [[nodiscard]] const std::vector<Stage>& stages() const;
  [[nodiscard]] bool has_first_stage() const;
  [[nodiscard]] bool has_last_stage() const;
  /// With float16: divides the gradients by the scale of the losses, and looks for overflows on all ranks. If it
  /// returns false, then on all ranks: leave out this update, and zero the gradients. Called by all ranks after the
  /// last step of an update, before clipping. Otherwise does nothing and returns true.
  [[nodiscard]] bool unscale_gradients();
  /// With float16: the scale of the losses; checkpoints save and set it. Otherwise it is 1, and setting it does
  /// nothing.
  [[nodiscard]] LossScalingState loss_scaling() const;
  void set_loss_scaling(const LossScalingState& state);
  /// The 2-norm of the gradients of the whole model, over all stages and shards, tied parameters once: a scalar on this
  /// rank's device, the same on all ranks. Called by all ranks, after the last step of an update.
  [[nodiscard]] at::Tensor gradient_norm() const;
  /// Scales all gradients so that their norm is at most `most`; returns the norm before. Called by all ranks. Like
  /// torch::nn::utils::clip_grad_norm_ for the whole model, without waiting for the device.
  at::Tensor clip_gradient_norm(double most);
  /// Limits every element of the gradients to [-most, most].
  void clip_gradient_values(double most);

  /// Training steps so far, failed ones included. The step number is part of the random seed: set it when resuming a
  /// run.
  [[nodiscard]] std::uint64_t steps() const;
  void set_steps(std::uint64_t steps);
  /// The lowered schedule; with "auto", that of the next step.
  [[nodiscard]] const Schedule& schedule() const;

  /// With PipelineOptions::graph: what was captured and replayed on this rank, and why the last step was not.
  [[nodiscard]] CapturedSteps captured() const;

  /// With "auto": the object that chooses the schedule (see auto_report in automatic.h). Otherwise null.
  [[nodiscard]] const Steering* steering() const;

  /// Calls `handler` in place of every action of this kind; it may run the action (see ActionContext).
  void on(ActionKind kind, std::function<void(const ActionContext&)> handler);

  /// Starts or stops recording. `timeline` is that of this rank's last step.
  void record_timeline(bool record);
  [[nodiscard]] const Timeline& timeline() const;
  /// Called by all ranks. Rank `to` gets the timelines of all ranks of the pipeline, by rank; the others get an empty
  /// list.
  [[nodiscard]] std::vector<Timeline> collect_timelines(RankId to) const;

 private:
  void set_attached();
  Pipeline(World& world, std::pair<std::vector<Stage>, PipelineOptions> both)
      : Pipeline(world, std::move(both.first), std::move(both.second)) {}

  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft
