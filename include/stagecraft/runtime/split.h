#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "stagecraft/runtime/options.h"
#include "stagecraft/runtime/world.h"
#include "stagecraft/stage/from_module.h"

/// Cutting a model into the stages of a rank.
namespace stagecraft {

/// The placement of a schedule's stages in this world. `stages_per_rank` 0: the schedule's usual number. For "auto",
/// see auto_placement.
inline Placement placement_in(const World& world, const ScheduleChoice& schedule, int stages_per_rank = 0) {
  return schedule.placement(world.size(), stages_per_rank);
}

/// The stages that a schedule puts on this rank, ascending.
inline std::vector<StageId> stages_here(const World& world, const ScheduleChoice& schedule, int stages_per_rank = 0) {
  const Placement placement = placement_in(world, schedule, stages_per_rank);
  const auto here = placement.stages_of(world.rank());
  return {here.begin(), here.end()};
}

/// Bytes of the parameters of each layer.
std::vector<double> layer_bytes(const torch::nn::Sequential& model);
/// Seconds of forward and backward of each layer, measured on this rank: the shortest of a few tries. Leaves
/// parameters, gradients, buffers and random state as they are.
std::vector<double> layer_times(const torch::nn::Sequential& model, const at::Tensor& sample);

/// The number of layers of each stage for the schedule of the options, the same on all ranks. All ranks call it. Throws
/// InvalidArgument when there are fewer layers than stages, when the given sizes do not fit, when more than one way to
/// cut is given, or when a layer fails while it is measured.
std::vector<std::int64_t> stage_sizes(const torch::nn::Sequential& model, World& world, const PipelineOptions& options);

/// This rank's stages of a Sequential, cut between its layers as the options say (schedule, stages_per_rank, split),
/// and moved to the rank's device; the other layers stay where they are. Parameters keep the names they have in the
/// whole model. All ranks call it. Throws like `stage_sizes`.
std::vector<Stage> split(const torch::nn::Sequential& model, World& world, const PipelineOptions& options = {});

/// See MakesStages.
inline std::vector<Stage> stages_of(const torch::nn::Sequential& model, World& world, const PipelineOptions& options) {
  return split(model, world, options);
}

/// A Sequential of which every rank makes only its own layers: for models that do not fit into one process.
class LazyLayers {
 public:
  /// `make` returns one layer, any module or module holder. Its random numbers depend only on `PipelineOptions::seed`
  /// and the layer's position, not on the rank that makes it.
  template <typename Make>
  LazyLayers& add(Make make) {
    layers_.push_back([make = std::move(make)] { return torch::nn::AnyModule(make()); });
    return *this;
  }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(layers_.size()); }
  [[nodiscard]] torch::nn::AnyModule make(std::int64_t layer) const {
    return layers_.at(static_cast<std::size_t>(layer))();
  }

 private:
  std::vector<std::function<torch::nn::AnyModule()>> layers_;
};

/// See MakesStages. Balances by the number of layers, or cuts as the options say; balancing by parameters or time
/// throws, because it would have to make all layers.
std::vector<Stage> stages_of(const LazyLayers& model, World& world, const PipelineOptions& options);

}  // namespace stagecraft
