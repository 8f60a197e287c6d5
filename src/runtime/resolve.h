#pragma once

#include <vector>

#include "stagecraft/runtime/pipeline.h"

/// From what a user asks for to a schedule that fits the ranks and stages there are.
namespace stagecraft {

/// By name, file, plan, or "auto". `stages_by_rank`: what every rank of the pipeline has. Throws InvalidArgument.
Schedule resolve(const PipelineOptions& options, const std::vector<std::vector<StageId>>& stages_by_rank, RankId rank);

/// Throws InvalidArgument unless the rank has the stages that the schedule puts there.
void check_stages(const std::vector<Stage>& stages, const Schedule& schedule, RankId rank);

}  // namespace stagecraft
