#pragma once

#include <optional>
#include <vector>

#include "stagecraft/runtime/pipeline.h"
#include "step_inputs.h"

namespace stagecraft {

/// What the loss of every microbatch counts: in the gradients, in the loss of the batch, among replicas, and whether at
/// all. Known before the first backward of a step: `begin`, then losses as forwards make them, then `end`.
class LossPolicy {
 public:
  struct Place {
    bool has_last = false;       // whether this rank has the last stage, and with it the targets
    RankId last;                 // the rank that has, in the pipeline
    bool others_weigh = false;   // whether stages without the targets have losses of their own
  };

  /// The world and the options outlive it.
  LossPolicy(World& world, const PipelineOptions& options, int microbatches, const Place& place)
      : world_(world), options_(options), microbatches_(static_cast<std::size_t>(microbatches)), place_(place) {}

  /// All ranks call it, with what the step was given.
  void begin(const StepInputs& inputs);
  /// The losses that this rank has, or all of them if the options say so; then all ranks call it.
  void end(StepResult& result);
  /// Drops what a failed step has left.
  void clear() { losses_.clear(); }

  /// The loss of one microbatch on the last stage. `roots` and `seeds` get what its backward begins with.
  void add_loss(StageId stage, MicrobatchId microbatch, const Value& output, std::vector<at::Tensor>& roots,
                std::vector<at::Tensor>& seeds);
  /// A loss that a stage has beside it.
  void add_auxiliary_loss(StageId stage, MicrobatchId microbatch, const at::Tensor& loss,
                          std::vector<at::Tensor>& roots, std::vector<at::Tensor>& seeds);
  /// Whether the last stage has losses in this step.
  [[nodiscard]] bool has_losses() const { return place_.has_last && options_.loss && !inputs_->targets.empty(); }

 private:
  void weigh_microbatches();
  void weigh_replicas();
  void share_weights();
  [[nodiscard]] double replica_weight() const;
  at::Tensor seed_for(const at::Tensor& loss, MicrobatchId microbatch);
  void share(StepResult& result);
  [[nodiscard]] Message of_all_replicas(Message own) const;

  World& world_;
  const PipelineOptions& options_;
  std::size_t microbatches_;
  Place place_;

  const StepInputs* inputs_ = nullptr;
  std::vector<double> weights_;  // by microbatch; of a mean they add up to 1, or 0 if nothing counts
  std::optional<double> total_;  // what they added up to before; none if unknown
  double replica_weight_ = 1;    // of this replica's losses, 1 on average
  std::vector<at::Tensor> losses_;  // by microbatch; undefined where there is none yet
  // The last one made, since they are often the same.
  at::Tensor seed_;
  double seed_weight_ = 0;
};

}  // namespace stagecraft
