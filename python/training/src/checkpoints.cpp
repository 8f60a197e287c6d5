#include "checkpoints.h"

#include "stagecraft/checkpoint/checkpoint.h"

namespace stagecraft::python {

void save_to(PipelineBox& box, const std::string& path, std::int64_t step,
             const std::map<std::string, std::string>& metadata) {
  World& world = box.world();
  SaveOptions options;
  options.step = step;
  options.metadata = metadata;
  box.without_gil([&](Pipeline& pipeline) { save_checkpoint(world, pipeline, path, options); });
}

std::int64_t load_from(PipelineBox& box, const std::string& path) {
  World& world = box.world();
  return box.without_gil([&](Pipeline& pipeline) { return load_checkpoint(world, pipeline, path); });
}

}  // namespace stagecraft::python
