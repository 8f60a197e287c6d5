#include "pipeline.h"

#include "checkpoints.h"
#include "errors.h"
#include "optimizers.h"
#include "options.h"
#include "pipeline_box.h"
#include "stage.h"
#include "stagecraft/automatic/automatic.h"
#include "stagecraft/core/error.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft::python {
namespace {

py::tuple to_tuple(const StepResult& result) {
  py::list losses;
  for (const at::Tensor& loss : result.losses) losses.append(loss);
  return py::make_tuple(losses, result.weights, to_python(result.output));
}

py::list to_list(const Timeline& timeline) {
  py::list spans;
  for (const Span& span : timeline) {
    spans.append(py::make_tuple(to_text(span.action), span.start, span.end, span.waited, span.bytes, span.beside,
                                span.replayed));
  }
  return spans;
}

}  // namespace

PipelineBox::PipelineBox(std::shared_ptr<WorldBox> world, const py::list& specs, const py::dict& options, py::list keep)
    : world_(std::move(world)) {
  std::vector<Stage> stages;
  std::vector<std::shared_ptr<StageSettings>> settings;
  PipelineOptions own = options_from(options, keep);
  const bool has_seed = !options["seed"].is_none();
  for (const py::handle spec : specs) {
    PythonStage made = make_stage(py::cast<py::dict>(spec), has_seed, own.recompute, keep);
    stages.push_back(std::move(made.stage));
    settings.push_back(std::move(made.settings));
  }
  World& open = world_->world();
  const py::gil_scoped_release no_gil;
  StepScope scope(open.device());
  try {
    pipeline_.emplace(open, std::vector<Stage>(stages), std::move(own));
  } catch (...) {
    scope.set_failed();
    throw;
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    settings[i]->is_last = stages[i].index().value + 1 == pipeline_->schedule().stages();
  }
}

PipelineBox::~PipelineBox() {
  // Threads of the pipeline may need the GIL to end.
  std::optional<py::gil_scoped_release> no_gil;
  if (PyGILState_Check() != 0) no_gil.emplace();
  end();
}

void PipelineBox::end() { pipeline_.reset(); }

Pipeline& PipelineBox::pipeline() {
  if (!pipeline_) throw InvalidArgument("the world of this pipeline has ended: make another");
  return *pipeline_;
}

py::tuple PipelineBox::step(bool training, const py::tuple& arguments, const py::dict& keywords,
                            const py::object& target, const py::dict& loss_keywords, bool return_outputs) {
  const ValueList given = from_arguments(arguments);
  StepOptions options;
  options.target = from_input(target);
  options.keywords = from_keywords(keywords);
  options.loss_keywords = from_keywords(loss_keywords);
  options.return_outputs = return_outputs;
  return to_tuple(without_gil(
      [&](Pipeline& pipeline) { return training ? pipeline.step(given, options) : pipeline.eval(given, options); }));
}

py::tuple PipelineBox::step_microbatches(bool training, const py::list& arguments, const py::list& keywords,
                                         const py::list& targets, const py::dict& loss_keywords, bool return_outputs) {
  std::vector<ValueList> given;
  for (const py::handle one : arguments) given.push_back(from_arguments(one));
  std::vector<Value> wanted;
  for (const py::handle one : targets) wanted.push_back(from_input(one));
  StepOptions options;
  for (const py::handle one : keywords) options.microbatch_keywords.push_back(from_keywords(one));
  options.loss_keywords = from_keywords(loss_keywords);
  options.return_outputs = return_outputs;
  return to_tuple(without_gil([&](Pipeline& pipeline) {
    return training ? pipeline.step_microbatches(given, wanted, options)
                    : pipeline.eval_microbatches(given, wanted, options);
  }));
}

py::list PipelineBox::infer_shapes(const py::tuple& arguments, const py::dict& keywords) {
  const ValueList given = from_arguments(arguments);
  StepOptions options;
  options.keywords = from_keywords(keywords);
  const auto shapes = without_gil([&](Pipeline& pipeline) { return pipeline.infer_shapes(given, options); });
  py::list all;
  for (const StageShapes& one : shapes) {
    py::list outputs;
    for (const TensorSpec& spec : one.outputs) outputs.append(py::make_tuple(spec.sizes, spec.dtype));
    all.append(py::make_tuple(one.stage.value, one.microbatch.value, outputs));
  }
  return all;
}

void PipelineBox::on(const std::string& kind, const py::object& handler, py::list keep) {
  const Borrowed own(handler, keep);
  for (int k = 0; k < kActionKinds; ++k) {
    const auto known = static_cast<ActionKind>(k);
    if (kind_text(known) != kind) continue;
    pipeline().on(known, [own](const ActionContext& context) {
      std::exception_ptr failure;  // of the action, which Python cannot hand on as what it is
      const auto run = [&] {
        const py::gil_scoped_release no_gil;
        try {
          context.run();
        } catch (...) {
          failure = std::current_exception();
          throw;
        }
      };
      try {
        in_python([&] { own.get()(context.stage().index().value, to_text(context.action()), py::cpp_function(run)); });
      } catch (const PythonError&) {
        if (failure) std::rethrow_exception(failure);
        throw;
      }
    });
    return;
  }
  throw InvalidArgument("there is no kind of action called '" + kind + "': F, B, I, W, SEND_F, ... are");
}

py::list PipelineBox::collect_timelines(int to) {
  const auto all = without_gil([&](Pipeline& pipeline) { return pipeline.collect_timelines(RankId(to)); });
  py::list lists;
  for (const Timeline& one : all) lists.append(to_list(one));
  return lists;
}

void bind_pipeline(py::module_& module) {
  using Box = PipelineBox;
  py::class_<Box, std::shared_ptr<Box>>(module, "Pipeline")
      .def(py::init([](std::shared_ptr<WorldBox> world, const py::list& specs, const py::dict& options, py::list keep) {
        auto box = std::make_shared<Box>(world, specs, options, std::move(keep));
        world->add(box);
        return box;
      }))
      .def("step", &Box::step)
      .def("step_microbatches", &Box::step_microbatches)
      .def("infer_shapes", &Box::infer_shapes)
      .def("on", &Box::on)
      .def("named_parameters", [](Box& box) { return box.pipeline().named_parameters(); })
      .def("attach", [](Box& box, const std::vector<at::Tensor>& tensors,
                        bool by_element) { attach_tensors(box.pipeline(), tensors, by_element); })
      .def("refresh_modules", [](Box& box) { box.without_gil([](Pipeline& own) { own.refresh_modules(); }); })
      .def("unscale_gradients",
           [](Box& box) { return box.without_gil([](Pipeline& own) { return own.unscale_gradients(); }); })
      .def("loss_scaling",
           [](Box& box) {
             const LossScalingState state = box.pipeline().loss_scaling();
             return py::make_tuple(state.scale, state.updates);
           })
      .def("set_loss_scaling",
           [](Box& box, double scale, std::int64_t updates) {
             box.pipeline().set_loss_scaling({scale, updates});
           })
      .def("gradient_norm", [](Box& box) { return box.without_gil([](Pipeline& own) { return own.gradient_norm(); }); })
      .def("clip_gradient_norm",
           [](Box& box, double most) {
             return box.without_gil([&](Pipeline& own) { return own.clip_gradient_norm(most); });
           })
      .def("clip_gradient_values",
           [](Box& box, double most) { box.without_gil([&](Pipeline& own) { own.clip_gradient_values(most); }); })
      .def_property(
          "steps", [](Box& box) { return box.pipeline().steps(); },
          [](Box& box, std::uint64_t steps) { box.pipeline().set_steps(steps); })
      .def("schedule_name", [](Box& box) { return box.pipeline().schedule().name; })
      .def("schedule_rows", [](Box& box) { return rows_of(box.pipeline().schedule()); })
      .def("microbatches", [](Box& box) { return box.pipeline().schedule().microbatches; })
      .def("has_first_stage", [](Box& box) { return box.pipeline().has_first_stage(); })
      .def("has_last_stage", [](Box& box) { return box.pipeline().has_last_stage(); })
      .def("captured",
           [](Box& box) {
             const CapturedSteps steps = box.pipeline().captured();
             return py::make_tuple(steps.graphs, steps.replayed, steps.eager, steps.last_was_replayed, steps.reason,
                                   steps.bytes, steps.lanes);
           })
      .def("record_timeline", [](Box& box, bool record) { box.pipeline().record_timeline(record); })
      .def("timeline", [](Box& box) { return to_list(box.pipeline().timeline()); })
      .def("collect_timelines", &Box::collect_timelines)
      .def("auto_report", [](Box& box) { return auto_report(box.pipeline()).text(); })
      .def("save", &save_to)
      .def("load", &load_from)
      .def("end", [](Box& box) {
        const py::gil_scoped_release no_gil;
        box.end();
      });
}

}  // namespace stagecraft::python
