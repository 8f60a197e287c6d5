#include "master_parameters.h"

#include "stagecraft/core/error.h"
#include "stagecraft/core/name_pattern.h"

namespace stagecraft {

MasterParameters::MasterParameters(World& world, const std::vector<Stage>& stages, const PipelineOptions& options,
                                   const Placement& placement, const std::vector<std::size_t>& completion_order)
    : kind_(options.shard), is_alone_(world.replicas() == 1), stages_(stages.size()) {
  if (!options.ties.empty()) tied_.emplace(world, stages, options.ties, placement);
  const Precision& precision = options.precision;
  MasterOptions how{.shard = options.shard,
                    .type = precision.parameters,
                    .reduce = precision.reduce,
                    .bucket_bytes = options.bucket_bytes};
  if (precision.compute) {
    how.compute = [precision](const std::string& name) {
      return fits_any(precision.keep, name) ? std::nullopt : precision.compute;
    };
  }
  masters_.emplace(world.more_peers("the replicas' masters"), stages, completion_order, how, world.device(),
                   tied_ ? tied_->tensors() : std::vector<at::Tensor>());
}

void MasterParameters::make_equal() {
  if (tied_) tied_->make_equal();
  masters_->make_equal();
}

void MasterParameters::begin_step(const Step& step) {
  step_ = step;
  if (step.training && !is_attached_) {
    throw InvalidArgument(
        "parameters are sharded, or of another type than the modules', so the optimizer has to be checked before the "
        "first step: make it from pipeline.parameters(), and call pipeline.attach(optimizer)");
  }
  if (step.training && step.is_first) masters_->drop_gradients();
  masters_->begin_step(/*masters_may_have_changed=*/!step.training || step.is_first);
}

/// Gradients that are not sharded are added up here until the last step.
bool MasterParameters::reduces() const {
  return step_.is_last || kind_ == Shard::kGradients || kind_ == Shard::kParameters;
}

void MasterParameters::reduce_gradients(std::size_t stage) {
  if (reduces()) masters_->reduce(stage);
}

void MasterParameters::end_step(const std::vector<std::size_t>& never_reduced) {
  if (step_.training) {
    for (const std::size_t stage : never_reduced) reduce_gradients(stage);
    masters_->finish();
    if (tied_ && reduces()) {
      tied_->sum({.of = [this](const at::Tensor& own) -> at::Tensor& { return masters_->gradient_of(own); },
                  .zeros_of = [this](const at::Tensor& own) { return masters_->zero_gradient_of(own); }});
      masters_->reduce(stages_);
      masters_->finish();
    }
  }
  if (step_.only_forward) masters_->spread_buffers();
  masters_->release();
}

void MasterParameters::cancel() { masters_->cancel(); }

}  // namespace stagecraft
