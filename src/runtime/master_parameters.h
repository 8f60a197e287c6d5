#pragma once

#include <optional>

#include "parameter_store.h"
#include "tied_parameters.h"

namespace stagecraft {

/// The optimizer updates masters, of another type than the modules' parameters or shared out among the replicas: see
/// Masters. Tied parameters are summed over their stages at the end of a step, then reduced over the replicas.
class MasterParameters : public ParameterStore {
 public:
  /// All ranks make it. The stages outlive it.
  MasterParameters(World& world, const std::vector<Stage>& stages, const PipelineOptions& options,
                   const Placement& placement, const std::vector<std::size_t>& completion_order);

  void make_equal() override;
  void set_order(const std::vector<std::size_t>& completion_order) override { masters_->reorder(completion_order); }
  [[nodiscard]] NamedTensors parameters() const override { return masters_->tensors(); }
  [[nodiscard]] at::Tensor master_of(const at::Tensor& parameter) const override {
    return masters_->master_of(parameter);
  }
  void set_attached() override { is_attached_ = true; }
  [[nodiscard]] const Masters* masters() const override { return &*masters_; }
  void begin_step(const Step& step) override;
  void unshard(std::size_t stage) override { masters_->unshard(stage); }
  void reshard(std::size_t stage) override { masters_->reshard(stage); }
  double require(std::size_t stage) override { return masters_->require(stage); }
  void collect_gradients(std::size_t stage) override { masters_->collect(stage); }
  void reduce_gradients(std::size_t stage) override;
  void end_step(const std::vector<std::size_t>& never_reduced) override;
  void cancel() override;
  [[nodiscard]] bool keeps_memory() const override { return kind_ != Shard::kParameters; }
  [[nodiscard]] bool has_replicas() const override { return !is_alone_; }
  at::Tensor& gradient_of(const at::Tensor& parameter) override { return masters_->gradient_of(parameter); }
  [[nodiscard]] const std::vector<BesideRecord>& records() const override { return masters_->records(); }

 private:
  [[nodiscard]] bool reduces() const;

  Shard kind_;
  bool is_alone_;
  std::size_t stages_;
  std::optional<TiedParameters> tied_;  // with ties
  std::optional<Masters> masters_;
  Step step_;
  bool is_attached_ = false;
};

}  // namespace stagecraft
