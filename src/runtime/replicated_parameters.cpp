#include "replicated_parameters.h"

#include <algorithm>

namespace stagecraft {

ReplicatedParameters::ReplicatedParameters(World& world, const std::vector<Stage>& stages,
                                           const PipelineOptions& options, const Placement& placement,
                                           const std::vector<std::size_t>& completion_order)
    : stages_(stages), is_reduced_(stages.size(), false) {
  if (!options.ties.empty()) tied_.emplace(world, stages, options.ties, placement);
  if (world.replicas() == 1) return;
  averager_.emplace(world.more_peers("the replicas' averaging"), stages, completion_order, options.bucket_bytes,
                    world.device(), tied_ ? tied_->tensors() : std::vector<at::Tensor>());
}

void ReplicatedParameters::make_equal() {
  if (tied_) tied_->make_equal();
  if (averager_) averager_->make_equal();
}

void ReplicatedParameters::set_order(const std::vector<std::size_t>& completion_order) {
  if (averager_) averager_->reorder(completion_order);
}

NamedTensors ReplicatedParameters::parameters() const {
  NamedTensors all;
  for (const Stage& stage : stages_) {
    for (const auto& [name, parameter] : stage.parameters()) {
      const bool listed = std::any_of(all.begin(), all.end(),
                                      [&own = parameter](const auto& other) { return other.second.is_same(own); });
      if (!listed) all.emplace_back(name, parameter);
    }
  }
  return all;
}

void ReplicatedParameters::begin_step(const Step& step) {
  step_ = step;
  is_reduced_.assign(is_reduced_.size(), false);
  if (!step.training || !tied_) return;
  if (step.is_first) aside_.reset();
  if (!aside_) aside_.emplace(tied_->set_aside());
}

void ReplicatedParameters::reduce_gradients(std::size_t stage) {
  if (!averager_ || !step_.is_last) return;
  averager_->start(stage);
  is_reduced_[stage] = true;
}

void ReplicatedParameters::end_step(const std::vector<std::size_t>& never_reduced) {
  if (step_.only_forward && averager_) averager_->spread_buffers();
  if (!step_.training || !step_.is_last) return;
  for (const std::size_t stage : never_reduced) reduce_gradients(stage);
  if (averager_) averager_->finish();
  if (!tied_) return;
  tied_->sum({});
  aside_.reset();
  if (averager_ && tied_->any_in(is_reduced_)) averager_->average_tied();
}

void ReplicatedParameters::cancel() {
  if (averager_) averager_->cancel();
  aside_.reset();
}

const std::vector<BesideRecord>& ReplicatedParameters::records() const {
  static const std::vector<BesideRecord> none;
  return averager_ ? averager_->records() : none;
}

}  // namespace stagecraft
