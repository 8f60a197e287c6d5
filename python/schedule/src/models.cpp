// Exported models: what they are made of, and how they are cut into stages.

#include <sstream>

#include "functions.h"
#include "model_report.h"
#include "split_report.h"
#include "stagecraft/core/text.h"
#include "stagecraft/file/zip.h"

namespace stagecraft::python {
namespace {

using Model = std::shared_ptr<const ExportedModel>;

std::vector<int> places(const Arguments& args, const graph::Program& program) {
  const bool marked = args.flag(3, "marked");
  if (static_cast<int>(!args.is_none(1)) + static_cast<int>(!args.is_none(2)) + static_cast<int>(marked) != 1) {
    throw InvalidArgument("give exactly one of stages, at and marked to say where to cut");
  }
  if (marked) return graph::marked_places(program);
  if (args.is_none(1)) {
    std::vector<graph::ModuleCut> cuts;
    for (const std::string& text : args.texts(2, "at")) cuts.push_back(cli::to_module_cut(text));
    return graph::places_of(program, cuts);
  }
  const int stages = args.integer(1, "stages");
  if (stages < 1) throw InvalidArgument("stages: got " + std::to_string(stages) + ", must be at least 1");
  return without_gil([&] { return graph::balanced_places(program, stages); });
}

}  // namespace

Object model_read(const Arguments& args) {
  const std::string path = args.path(0, "path");
  const std::string name = args.is_none(1) ? std::string() : args.text(1, "model");
  return wrapped(without_gil([&]() -> Model {
    return std::make_shared<const ExportedModel>(
        ExportedModel{path, graph::read_program(ZipArchive(open_file(path)), name)});
  }));
}

Object model_facts(const Arguments& args) {
  const auto& model = args.value<Model>(0, "model");
  return to_python(without_gil([&] { return cli::model_json(model->path, model->program); }));
}

Object model_text(const Arguments& args) {
  const auto& model = args.value<Model>(0, "model");
  const cli::ModelReportOptions options = {.depth = args.integer(1, "depth"), .parameters = args.flag(2, "parameters")};
  std::ostringstream out;
  without_gil([&] { cli::write_model_report(out, model->path, model->program, options); });
  return to_python(std::string_view(out.str()));
}

Object model_split(const Arguments& args) {
  const auto& model = args.value<Model>(0, "model");
  const std::vector<int> cuts = places(args, model->program);
  return wrapped(without_gil([&] { return CutModel{model, graph::cut(model->program, cuts)}; }));
}

/// (report, text).
Object split_facts(const Arguments& args) {
  const auto& split = args.value<CutModel>(0, "split");
  const graph::Program& program = split.model->program;
  std::ostringstream text;
  cli::write_split_report(text, program, split.cut);
  return tuple_of(to_python(cli::split_json(split.model->path, program, split.cut)),
                  to_python(std::string_view(text.str())));
}

Object split_costs(const Arguments& args) {
  const auto& split = args.value<CutModel>(0, "split");
  const cli::OptimizerState optimizer{.name = args.text(1, "optimizer")};
  if (optimizer.name != "sgd" && optimizer.name != "momentum" && optimizer.name != "adam") {
    throw InvalidArgument("optimizer: got " + in_quotes(optimizer.name) + ", expected sgd, momentum or adam");
  }
  return wrapped(CostFile{cli::costs_of(split.model->program, split.cut, optimizer), {}});
}

}  // namespace stagecraft::python
