#pragma once

#include <map>
#include <string>

#include "pipeline_box.h"

namespace stagecraft::python {

/// Both are called by all ranks. Weights and buffers, under their names in the whole model.
void save_to(PipelineBox& box, const std::string& path, std::int64_t step,
             const std::map<std::string, std::string>& metadata);
/// Returns the step that was saved.
std::int64_t load_from(PipelineBox& box, const std::string& path);

}  // namespace stagecraft::python
