#pragma once

#include <optional>
#include <vector>

#include "stagecraft/runtime/pipeline.h"
#include "step_inputs.h"

namespace stagecraft {

/// Computes the losses of a step and their weights: how much each microbatch counts in the gradients and in the loss of
/// the batch, and each replica among all. In each step, `begin` finds the weights, forwards add losses, and `end`
/// returns them.
class LossPolicy {
 public:
  struct Place {
    bool has_last = false;      // whether this rank has the last stage, and with it the targets
    RankId last;                // the rank of the pipeline that has it
    bool others_weigh = false;  // whether some stage has an auxiliary loss, which needs the weights
  };

  /// The world and the options outlive it.
  LossPolicy(World& world, const PipelineOptions& options, int microbatches, const Place& place)
      : world_(world), options_(options), microbatches_(static_cast<std::size_t>(microbatches)), place_(place) {}

  /// Factor of the gradients of all losses, not of the losses that are returned.
  void set_scale(double scale) { scale_ = scale; }

  /// Called by all ranks before the first forward, with the inputs of the step.
  void begin(const StepInputs& inputs);
  /// Sets the losses and weights of `result`: those of this rank, or of all replicas with `broadcast_loss`. Called by
  /// all ranks.
  void end(StepResult& result);
  /// The gradients of the losses of this step, by microbatch: what `seed_for` takes.
  [[nodiscard]] std::vector<double> seeds() const;
  /// While a step is captured: reads these inputs, and takes the gradients of losses from a vector on the device.
  void begin_capture(const StepInputs& inputs, const at::Tensor& seeds);
  /// Goes back to the inputs of `begin`; returns the losses that were captured.
  std::vector<at::Tensor> end_capture(const StepInputs& inputs);
  /// The losses of a step that was replayed.
  void set_losses(std::vector<at::Tensor> losses) { losses_ = std::move(losses); }
  /// Drops what a failed step has left.
  void clear() { losses_.clear(); }

  /// Computes the loss of one microbatch on the last stage. Appends the tensors that its backward starts from to
  /// `roots`, and their gradients to `seeds`.
  void add_loss(StageId stage, MicrobatchId microbatch, const Value& output, std::vector<at::Tensor>& roots,
                std::vector<at::Tensor>& seeds);
  /// The same for the auxiliary loss of a stage, which is already computed.
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
  std::vector<double> weights_;  // by microbatch; for a mean they sum to 1, or 0 if all are 0
  std::optional<double> total_;  // the sum before normalisation; none if unknown
  double replica_weight_ = 1;    // factor of this replica's losses, 1 on average
  double scale_ = 1;
  std::vector<at::Tensor> losses_;  // by microbatch; undefined where there is none yet
  at::Tensor seeds_on_device_;      // defined while a step is captured
};

}  // namespace stagecraft
