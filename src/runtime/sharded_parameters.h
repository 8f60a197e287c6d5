#pragma once

#include <optional>

#include "parameter_store.h"
#include "tied_parameters.h"

namespace stagecraft {

/// Replicas share the state of the optimizer, the gradients or the parameters: see Sharder. Tied parameters are summed
/// over their stages at the end of a step, then reduced over the replicas.
class ShardedParameters : public ParameterStore {
 public:
  /// All ranks make it. The stages outlive it. Throws InvalidArgument without replicas.
  ShardedParameters(World& world, const std::vector<Stage>& stages, const PipelineOptions& options,
                    const Placement& placement, const std::vector<std::size_t>& completion_order);

  void make_equal() override;
  void set_order(const std::vector<std::size_t>& completion_order) override { sharder_->reorder(completion_order); }
  [[nodiscard]] NamedTensors parameters() const override { return sharder_->masters(); }
  [[nodiscard]] at::Tensor master_of(const at::Tensor& parameter) const override {
    return sharder_->master_of(parameter);
  }
  void set_attached() override { is_attached_ = true; }
  [[nodiscard]] const Sharder* sharder() const override { return &*sharder_; }
  void begin_step(const Step& step) override;
  void unshard(std::size_t stage) override { sharder_->unshard(stage); }
  void reshard(std::size_t stage) override { sharder_->reshard(stage); }
  void require(std::size_t stage) override { sharder_->require(stage); }
  void reduce_gradients(std::size_t stage) override;
  void end_step(const std::vector<std::size_t>& never_reduced) override;
  void cancel() override;
  [[nodiscard]] const std::vector<Averager::Record>& records() const override { return sharder_->records(); }

 private:
  [[nodiscard]] bool reduces() const;

  Shard kind_;
  std::size_t stages_;
  std::optional<TiedParameters> tied_;  // with ties
  std::optional<Sharder> sharder_;
  Step step_;
  bool is_attached_ = false;
};

}  // namespace stagecraft
