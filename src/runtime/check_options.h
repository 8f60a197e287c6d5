#pragma once

#include <vector>

#include "stagecraft/runtime/pipeline.h"

namespace stagecraft {

/// Throws InvalidArgument for options that do not fit each other, or this rank's stages.
void check_options(const PipelineOptions& options, const std::vector<Stage>& stages, const World& world);

}  // namespace stagecraft
