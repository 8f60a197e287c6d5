#pragma once

#include <memory>
#include <optional>
#include <string>

#include "objects.h"
#include "stagecraft/runtime/pipeline.h"
#include "step_scope.h"
#include "worlds.h"

namespace stagecraft::python {

/// A pipeline, for Python. Ends with its world at the latest.
class PipelineBox : public Dependent {
 public:
  /// Stages and options are dicts: see make_stage and options_from.
  PipelineBox(std::shared_ptr<WorldBox> world, const py::list& specs, const py::dict& options, py::list keep);
  ~PipelineBox() override;

  void end() override;
  /// Throws InvalidArgument after the end.
  [[nodiscard]] Pipeline& pipeline();
  [[nodiscard]] World& world() const { return world_->world(); }

  /// All three return (losses, weights, output).
  py::tuple step(bool training, const py::tuple& arguments, const py::dict& keywords, const py::object& target,
                 const py::dict& loss_keywords, bool return_outputs);
  py::tuple step_microbatches(bool training, const py::list& arguments, const py::list& keywords,
                              const py::list& targets, const py::dict& loss_keywords, bool return_outputs);
  py::list infer_shapes(const py::tuple& arguments, const py::dict& keywords);
  void on(const std::string& kind, const py::object& handler, py::list keep);
  py::list collect_timelines(int to);

  /// Runs `work` as a step runs: without the GIL, with autograd on this thread, and warnings as Python's.
  template <typename Work>
  auto without_gil(const Work& work);

 private:
  std::shared_ptr<WorldBox> world_;
  std::optional<Pipeline> pipeline_;
};

template <typename Work>
auto PipelineBox::without_gil(const Work& work) {
  Pipeline& own = pipeline();
  world_->begin_step();
  const c10::Device device = world_->world().device();
  const py::gil_scoped_release no_gil;
  StepScope scope(device);
  try {
    return work(own);
  } catch (...) {
    scope.set_failed();
    throw;
  }
}

}  // namespace stagecraft::python
