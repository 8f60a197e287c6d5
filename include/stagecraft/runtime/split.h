#pragma once

#include <string>
#include <vector>

#include "stagecraft/core/error.h"
#include "stagecraft/runtime/auto_schedule.h"
#include "stagecraft/runtime/world.h"
#include "stagecraft/schedule/generator.h"
#include "stagecraft/schedule/schedule_file.h"
#include "stagecraft/stage/from_module.h"
#include "stagecraft/stage/microbatches.h"

/// Cutting a model into the stages of a rank.
namespace stagecraft {

/// Where a schedule, by name or file, puts its stages in this world. `stages_per_rank` 0: as many as the schedule usually
/// has. For "auto": see auto_placement.
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

struct SplitOptions {
  std::string schedule = "1F1B";
  int stages_per_rank = 0;
  /// Layers of each stage; empty: as even as possible.
  std::vector<std::int64_t> layers = {};
};

/// This rank's stages of a Sequential, cut between its layers. Parameters keep the names they have in the whole model.
/// Throws InvalidArgument when there are fewer layers than stages, or when `layers` does not add up.
inline std::vector<Stage> split(const torch::nn::Sequential& model, const World& world,
                                const SplitOptions& options = {}) {
  const Placement placement = placement_in(world, options.schedule, options.stages_per_rank);
  const auto layers = static_cast<std::int64_t>(model->size());
  if (options.layers.empty() && layers < placement.stages()) {
    throw InvalidArgument("a Sequential of " + std::to_string(layers) + " layers cannot be cut into " +
                          std::to_string(placement.stages()) + " stages: use fewer ranks or stages per rank");
  }
  const std::vector<std::int64_t> sizes =
      options.layers.empty() ? even_sizes(layers, placement.stages()) : options.layers;
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) total += size;
  if (static_cast<int>(sizes.size()) != placement.stages() || total != layers) {
    throw InvalidArgument("layers names " + std::to_string(sizes.size()) + " stages and " + std::to_string(total) +
                          " layers, but there are " + std::to_string(placement.stages()) + " stages and " +
                          std::to_string(layers) + " layers");
  }
  const auto names = model->named_children().keys();
  std::vector<Stage> stages;
  for (const StageId stage : placement.stages_of(world.rank())) {
    std::int64_t begin = 0;
    for (std::size_t s = 0; s < stage.index(); ++s) begin += sizes[s];
    torch::nn::Sequential part;
    for (std::int64_t i = begin; i < begin + sizes[stage.index()]; ++i) {
      part->push_back(names[static_cast<std::size_t>(i)], *(model->begin() + i));
    }
    stages.push_back(make_stage(stage.value, part));
  }
  return stages;
}

}  // namespace stagecraft
