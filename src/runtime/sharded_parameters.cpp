#include "sharded_parameters.h"

#include "stagecraft/core/error.h"

namespace stagecraft {

ShardedParameters::ShardedParameters(World& world, const std::vector<Stage>& stages, const PipelineOptions& options,
                                     const Placement& placement, const std::vector<std::size_t>& completion_order)
    : kind_(options.shard), stages_(stages.size()) {
  if (!options.ties.empty()) tied_.emplace(world, stages, options.ties, placement);
  sharder_.emplace(world.more_peers("the replicas' sharding"), stages, completion_order, kind_, options.bucket_bytes,
                   world.device(), tied_ ? tied_->tensors() : std::vector<at::Tensor>());
}

void ShardedParameters::make_equal() {
  if (tied_) tied_->make_equal();
  sharder_->make_equal();
}

void ShardedParameters::begin_step(const Step& step) {
  step_ = step;
  if (step.training && !is_attached_) {
    throw InvalidArgument(
        "parameters are sharded, so the optimizer has to be checked before the first step: make it from "
        "pipeline.parameters(), and call pipeline.attach(optimizer)");
  }
  if (step.training && step.is_first) sharder_->drop_gradients();
  sharder_->begin_step(/*masters_may_have_changed=*/!step.training || step.is_first);
}

/// Gradients that are not sharded are added up here until the last step.
bool ShardedParameters::reduces() const { return step_.is_last || kind_ != Shard::kOptimizer; }

void ShardedParameters::reduce_gradients(std::size_t stage) {
  if (reduces()) sharder_->reduce(stage);
}

void ShardedParameters::end_step(const std::vector<std::size_t>& never_reduced) {
  if (step_.training) {
    for (const std::size_t stage : never_reduced) reduce_gradients(stage);
    sharder_->finish();
    if (tied_ && reduces()) {
      tied_->sum();
      sharder_->reduce(stages_);
      sharder_->finish();
    }
  }
  sharder_->release();
}

void ShardedParameters::cancel() { sharder_->cancel(); }

}  // namespace stagecraft
