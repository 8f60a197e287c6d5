#include "resolve.h"

#include <algorithm>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/generator.h"
#include "stagecraft/schedule/schedule_file.h"
#include "starting_schedule.h"

namespace stagecraft {
namespace {}  // namespace

Schedule resolve(const PipelineOptions& options, const std::vector<std::vector<StageId>>& stages_by_rank, RankId rank) {
  const auto ranks = static_cast<int>(stages_by_rank.size());
  const auto stages_per_rank = static_cast<int>(stages_by_rank[rank.index()].size());
  if (!options.plan && is_auto(options.schedule)) {
    return starting_schedule(placement_of(stages_by_rank), std::max(1, options.microbatches));
  }
  const bool is_file = is_schedule_file(options.schedule);
  if (!options.plan && !is_file) {
    return make_schedule(
        options.schedule,
        {.ranks = ranks, .stages_per_rank = stages_per_rank, .microbatches = std::max(1, options.microbatches)});
  }
  Schedule schedule = options.plan ? *options.plan : read_schedule(options.schedule);
  if (schedule.ranks() != ranks) {
    throw InvalidArgument("the schedule is for " + std::to_string(schedule.ranks()) + " ranks, but the world has " +
                          std::to_string(ranks) + ": start as many, or give another schedule");
  }
  if (options.microbatches != 0 && options.microbatches != schedule.microbatches) {
    throw InvalidArgument("the schedule is for " + std::to_string(schedule.microbatches) + " microbatches, but " +
                          std::to_string(options.microbatches) +
                          " are asked for: leave the number out, or give another schedule");
  }
  return schedule;
}

void check_stages(const std::vector<Stage>& stages, const Schedule& schedule, RankId rank) {
  const auto expected = schedule.placement.stages_of(rank);
  std::string wanted;
  for (const StageId stage : expected) wanted += (wanted.empty() ? "" : ", ") + std::to_string(stage.value);
  for (const Stage& stage : stages) {
    if (!schedule.placement.contains(stage.index())) {
      throw InvalidArgument("rank " + std::to_string(rank.value) + " has stage " + std::to_string(stage.index().value) +
                            ", but the pipeline has stages 0 to " + std::to_string(schedule.stages() - 1));
    }
  }
  const bool same = stages.size() == expected.size() &&
                    std::equal(stages.begin(), stages.end(), expected.begin(),
                               [](const Stage& stage, StageId id) { return stage.index() == id; });
  if (same) return;
  std::string got;
  for (const Stage& stage : stages) got += (got.empty() ? "" : ", ") + std::to_string(stage.index().value);
  throw InvalidArgument("rank " + std::to_string(rank.value) + " has stages " + (got.empty() ? "(none)" : got) +
                        ", but the schedule wants stages " + wanted +
                        " there: every rank makes its own, and no rank goes without");
}

}  // namespace stagecraft
