#pragma once

#include <string>
#include <vector>

#include "stagecraft/runtime/auto_schedule.h"
#include "stagecraft/runtime/world.h"
#include "stagecraft/schedule/generator.h"
#include "stagecraft/schedule/schedule_file.h"
#include "stagecraft/stage/from_module.h"

/// Cutting a model into the stages of a rank.
namespace stagecraft {

/// Where a schedule, by name or file, puts its stages in this world. `stages_per_rank` 0: as many as the schedule
/// usually has. For "auto": see auto_placement.
inline Placement placement_in(const World& world, const std::string& schedule, int stages_per_rank = 0) {
  if (is_schedule_file(schedule)) return read_schedule(schedule).placement;
  if (is_auto(schedule)) return auto_placement(world.size(), stages_per_rank);
  return make_schedule(schedule, {.ranks = world.size(), .stages_per_rank = stages_per_rank, .microbatches = 1})
      .placement;
}

/// The stages that a schedule puts on this rank, ascending.
inline std::vector<StageId> stages_here(const World& world, const std::string& schedule, int stages_per_rank = 0) {
  const Placement placement = placement_in(world, schedule, stages_per_rank);
  const auto here = placement.stages_of(world.rank());
  return {here.begin(), here.end()};
}

enum class Balance {
  kLayers,      ///< As many layers in one stage as in another.
  kParameters,  ///< As many bytes of parameters.
  kTime,        ///< As much time, measured on the first rank with SplitOptions::sample.
};

/// How a Sequential is cut; all of its layers count, an embedding at the beginning and a head at the end among them.
struct SplitOptions {
  std::string schedule = "1F1B";
  int stages_per_rank = 0;
  /// What the stages are to have the same of, as near as whole layers allow: the largest stage is as small as it can
  /// be. Unless the cuts are given:
  Balance balance = Balance::kLayers;
  /// Layers of each stage.
  std::vector<std::int64_t> layers = {};
  /// Or the first layers of stages 1, 2, ..., counted from 0.
  std::vector<std::int64_t> cuts = {};
  /// To measure with: an input of the model, such as a microbatch, where its parameters are. Only the first rank needs
  /// it.
  at::Tensor sample = {};
};

/// Bytes of the parameters of each layer.
std::vector<double> layer_bytes(const torch::nn::Sequential& model);
/// Seconds of forward and backward of each layer, one after the other on this rank: the shortest of a few tries. Leaves
/// parameters, gradients, buffers and random state as they are.
std::vector<double> layer_times(const torch::nn::Sequential& model, const at::Tensor& sample);

/// Layers of each stage, by stage: the same on all ranks. All of them call it. Throws InvalidArgument when there are
/// fewer layers than stages, when what is given does not fit or is given twice; what a layer throws when it is
/// measured.
std::vector<std::int64_t> stage_sizes(const torch::nn::Sequential& model, World& world,
                                      const SplitOptions& options = {});

/// This rank's stages of a Sequential, cut between its layers. Parameters keep the names they have in the whole model.
/// All ranks call it. Throws like `stage_sizes`.
std::vector<Stage> split(const torch::nn::Sequential& model, World& world, const SplitOptions& options = {});

}  // namespace stagecraft
