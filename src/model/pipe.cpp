#include "stagecraft/model/pipe.h"

#include <algorithm>

#include "calling.h"
#include "interpreter.h"
#include "layers.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/identity.h"
#include "stagecraft/graph/report.h"
#include "stagecraft/runtime/split.h"
#include "torch_types.h"
#include "weights.h"

namespace stagecraft {
namespace {

std::vector<int> places(const graph::Program& program, const CutOptions& options) {
  const int ways = (options.stages != 0 ? 1 : 0) + (options.at.empty() ? 0 : 1) + (options.marked ? 1 : 0) +
                   (options.policy ? 1 : 0);
  if (ways > 1) throw InvalidArgument("give one way to cut: a number of stages, modules, marks or a policy");
  if (options.stages != 0) return graph::balanced_places(program, options.stages);
  if (!options.at.empty()) return graph::places_of(program, options.at);
  if (options.marked) return graph::marked_places(program);
  if (options.policy) return options.policy(program);
  return {};
}

/// Describes the whole program and its cuts, for ranks to compare.
std::string origin_of(const graph::Program& program, const graph::CutProgram& cut) {
  Fingerprint fingerprint;
  for (const graph::Node& node : program.nodes) fingerprint.add(program.describe(node));
  for (const graph::Input& input : program.inputs) {
    fingerprint.add(input.name);
    if (input.value == graph::kNoValue) continue;
    fingerprint.add(spec_of(program.values[static_cast<std::size_t>(input.value)].tensor).text());
  }
  for (const graph::StageGraph& stage : cut.stages) fingerprint.add(stage.nodes.size());
  return "an exported program of " + std::to_string(program.nodes.size()) + " operations cut into " +
         std::to_string(cut.stages.size()) + " stages, " + fingerprint.text();
}

}  // namespace

Pipe::Pipe(const std::string& path, const CutOptions& options)
    : archive_(std::make_shared<ZipArchive>(open_file(path))),
      program_(std::make_shared<graph::Program>(graph::read_program(*archive_, options.model))) {
  require_operators(*program_);
  places_ = places(*program_, options);
  cut_ = graph::cut(*program_, places_);
}

std::string Pipe::summary() const { return graph::summary(*program_, cut_); }

Stage Pipe::build_stage(int index, at::Device device) const {
  return std::move(build_stages({StageId(index)}, device).front());
}

std::vector<Stage> Pipe::build_stages(const World& world, const ScheduleChoice& schedule) const {
  const Placement placement = placement_in(world, schedule, stages() / world.size());
  if (placement.stages() != stages()) {
    throw InvalidArgument("the model is cut into " + std::to_string(stages()) + " stages, but " + schedule.name() +
                          " on " + std::to_string(world.size()) + " ranks has " + std::to_string(placement.stages()) +
                          ": cut into as many, or use another schedule");
  }
  const auto here = placement.stages_of(world.rank());
  return build_stages(std::vector<StageId>(here.begin(), here.end()), world.device());
}

std::vector<Stage> Pipe::build_stages(const std::vector<StageId>& indices, at::Device device) const {
  std::vector<int> inputs;
  for (const StageId index : indices) {
    if (index.value < 0 || index.value >= stages()) {
      throw InvalidArgument("there is no stage " + std::to_string(index.value) + ": stages are 0 to " +
                            std::to_string(stages() - 1));
    }
    const std::vector<int>& loads = cut_.stages[index.index()].loads;
    inputs.insert(inputs.end(), loads.begin(), loads.end());
  }
  std::sort(inputs.begin(), inputs.end());
  inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
  const LoadedTensors all = load_weights(*archive_, *program_, inputs, device);
  const std::string origin = origin_of(*program_, cut_);

  std::vector<Stage> built;
  for (const StageId index : indices) {
    const graph::StageGraph& graph = cut_.stages[index.index()];
    LoadedTensors own;
    NamedTensors parameters;
    NamedTensors buffers;
    StageOptions options;
    options.origin = origin;
    for (const int input : graph.loads) {
      const graph::Input& loaded = program_->inputs[static_cast<std::size_t>(input)];
      own.emplace(input, all.at(input));
      if (loaded.kind == graph::Input::Kind::kParameter) parameters.emplace_back(loaded.name, all.at(input));
      for (const std::string& other : loaded.other_names) options.other_names.emplace_back(other, loaded.name);
      if (loaded.kind == graph::Input::Kind::kBuffer) buffers.emplace_back(loaded.name, all.at(input));
      if (loaded.kind == graph::Input::Kind::kBuffer && !loaded.persistent) options.not_saved.push_back(loaded.name);
    }
    const bool is_last = index.value + 1 == stages();
    auto interpreter = std::make_shared<Interpreter>(program_, graph, own, device, is_last);
    Stage::Forward forward = [interpreter, program = program_, is_last](const StageCall& call) -> Value {
      ValueList results = interpreter->run(call.stage.value == 0 ? user_inputs(*program, call) : call.arguments);
      return is_last ? nested(program->result, results) : Value(std::move(results));
    };
    options.layers = [stage = ExportedStage{program_, places_, index.index(), graph, std::move(own), device}] {
      return layers_of(stage);
    };
    options.mode = [interpreter] { return interpreter->version(); };
    const auto enter_evaluation = [interpreter] {
      interpreter->set_evaluation(true);
      return std::function<void()>([interpreter] { interpreter->set_evaluation(false); });
    };
    built.emplace_back(index.value, std::move(forward), std::move(parameters), std::move(buffers), enter_evaluation,
                       std::move(options));
  }
  return built;
}

std::vector<Stage> stages_of(const Pipe& pipe, World& world, PipelineOptions& options) {
  options = pipe.options(std::move(options));
  return pipe.build_stages(world, options.schedule);
}

PipelineOptions Pipe::options(PipelineOptions options) const {
  for (const graph::CutEdge& edge : cut_.edges) {
    const graph::ValueInfo& value = program_->values[static_cast<std::size_t>(edge.value)];
    options.edges.push_back({StageId(edge.from), edge.output, StageId(edge.to), edge.argument,
                             value.is_tensor() && is_differentiable(value.tensor.element)});
  }
  for (const graph::Tie& tie : cut_.ties) {
    options.ties.push_back(
        {program_->inputs[static_cast<std::size_t>(tie.input)].name, {tie.stages.begin(), tie.stages.end()}});
  }
  const std::vector<ModelInput> all = inputs();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (options.argument_splits.size() <= i) options.argument_splits.push_back(all[i].split);
    if (!all[i].name.empty()) options.keyword_splits.emplace(all[i].name, all[i].split);
  }
  return options;
}

}  // namespace stagecraft
