#include "check_options.h"

#include "compute_types.h"
#include "graph_device.h"
#include "stagecraft/core/error.h"

namespace stagecraft {

void check_options(const PipelineOptions& options, const std::vector<Stage>& stages, const World& world) {
  if (stages.empty()) {
    throw InvalidArgument("rank " + std::to_string(world.rank().value) +
                          " has no stage: " + std::to_string(world.size()) +
                          " ranks need at least as many stages; start fewer ranks, or cut the model further");
  }
  if (options.microbatches < 0) {
    throw InvalidArgument("there must be at least 1 microbatch, got " + std::to_string(options.microbatches));
  }
  if (options.stages_per_rank != 0 && options.stages_per_rank != static_cast<int>(stages.size())) {
    throw InvalidArgument("stages_per_rank is " + std::to_string(options.stages_per_rank) + ", but rank " +
                          std::to_string(world.rank().value) + " has " + std::to_string(stages.size()) +
                          " stages: leave it out where stages are given");
  }
  const bool is_cut = stages.front().options().first_layer >= 0;
  if (options.split.is_given() && !is_cut) {
    throw InvalidArgument(
        "split says how a Sequential is cut, but the stages of this pipeline are given, or from an exported program: "
        "leave it out");
  }
  if (options.bucket_bytes < 1) {
    throw InvalidArgument("bucket_bytes is at least 1, got " + std::to_string(options.bucket_bytes));
  }
  if (options.shard != Shard::kNone && world.replicas() == 1) {
    throw InvalidArgument(
        "shard says what replicas share, but there is only one: start the world with replicas, or leave it out");
  }
  if (options.accumulate < 1) {
    throw InvalidArgument("accumulate is at least 1, got " + std::to_string(options.accumulate));
  }
  if (options.loss_weight && options.loss_scale == LossScale::kSum) {
    throw InvalidArgument(
        "loss_weight is about a mean, but loss_scale is kSum, which adds up all losses: give one of them");
  }
  if (options.graph.is_on() && !options.graph.is_auto() && !make_graph_device(world.device())) {
    throw InvalidArgument("graph is true, but rank " + std::to_string(world.rank().value) + " computes on " +
                          world.device().str() +
                          ": only steps on a CUDA device can be captured; leave it out, or write .graph = \"auto\" to "
                          "capture them where that is possible");
  }
  if (options.lanes < 0) {
    throw InvalidArgument("lanes is at least 1, or 0 for the usual number, got " + std::to_string(options.lanes));
  }
  check_precision(options.precision);
}

}  // namespace stagecraft
