#pragma once

#include <memory>
#include <optional>

#include "parameter_store.h"
#include "stagecraft/data_parallel/averager.h"
#include "tied_parameters.h"

namespace stagecraft {

/// Every replica has all parameters of its stages: REDUCE_GRAD averages their gradients, UNSHARD and RESHARD do
/// nothing. The gradients of tied parameters in an update are summed over their stages, then added to those accumulated
/// before; the result is averaged over the replicas if one of their stages was reduced in the last step (a handler may
/// put that off to a later one).
class ReplicatedParameters : public ParameterStore {
 public:
  /// All ranks make it. The stages outlive it.
  ReplicatedParameters(World& world, const std::vector<Stage>& stages, const PipelineOptions& options,
                       const Placement& placement, const std::vector<std::size_t>& completion_order);

  void make_equal() override;
  void set_order(const std::vector<std::size_t>& completion_order) override;
  [[nodiscard]] NamedTensors parameters() const override;
  void begin_step(const Step& step) override;
  void unshard(std::size_t /*stage*/) override {}
  void reshard(std::size_t /*stage*/) override {}
  double require(std::size_t /*stage*/) override { return 0; }
  void collect_gradients(std::size_t /*stage*/) override {}
  void reduce_gradients(std::size_t stage) override;
  void end_step(const std::vector<std::size_t>& never_reduced) override;
  void cancel() override;
  [[nodiscard]] bool keeps_memory() const override { return true; }
  [[nodiscard]] bool has_replicas() const override { return averager_.has_value(); }
  [[nodiscard]] const std::vector<BesideRecord>& records() const override;

 private:
  const std::vector<Stage>& stages_;
  Step step_;
  std::optional<TiedParameters> tied_;          // with ties
  std::optional<Averager> averager_;            // with replicas
  std::optional<TiedParameters::Aside> aside_;  // from the first step of an update to the last
  std::vector<bool> is_reduced_;                // by stage, in this step
};

}  // namespace stagecraft
