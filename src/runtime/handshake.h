#pragma once

#include <string>
#include <vector>

#include "stagecraft/runtime/pipeline.h"

/// Before the first step: were all ranks given the same pipeline?
namespace stagecraft {

/// What a rank says about its pipeline; what must be the same everywhere, and what its stages take and give.
std::string statement_of(const std::vector<Stage>& stages, const PipelineOptions& options, const Schedule& schedule);

/// Who differs from the others and how, from the statements of all ranks; empty when nobody does.
std::string disagreement(const std::vector<std::string>& statements);

/// Whether a stage of any rank has an auxiliary loss.
bool any_auxiliary_loss(const std::vector<std::string>& statements);

}  // namespace stagecraft
