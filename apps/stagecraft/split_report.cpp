#include "split_report.h"

#include <ostream>

#include <fmt/format.h>

#include "model_facts.h"
#include "stagecraft/core/error.h"
#include "stagecraft/graph/operators.h"
#include "stagecraft/graph/report.h"

namespace stagecraft::cli {
namespace {

using graph::Program;
using graph::ValueId;

Json values_json(const Program& program, const std::vector<ValueId>& values) {
  Json list = Json::array();
  for (const ValueId value : values) list.push_back(value_json(program, value));
  return list;
}

Json loads_json(const Program& program, const std::vector<int>& loads) {
  Json list = Json::array();
  for (const int input : loads) list.push_back(program.inputs[static_cast<std::size_t>(input)].name);
  return list;
}

/// Bytes of the gradients sent back over a boundary.
double gradient_bytes(const Program& program, const graph::CutProgram& cut, int boundary) {
  double bytes = 0;
  for (const ValueId value : graph::crossing(cut, boundary)) {
    const graph::ValueInfo& info = program.values[static_cast<std::size_t>(value)];
    if (info.is_tensor() && graph::is_differentiable(info.tensor.element)) {
      bytes += static_cast<double>(graph::bytes_of(program, value));
    }
  }
  return bytes;
}

}  // namespace

graph::ModuleCut to_module_cut(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::string side = colon == std::string::npos ? "beginning" : text.substr(colon + 1);
  if (side != "beginning" && side != "end") {
    throw InvalidArgument(fmt::format("'{}' says '{}' after the colon: it must be beginning or end", text, side));
  }
  return {text.substr(0, colon), side == "end" ? graph::ModuleCut::At::kEnd : graph::ModuleCut::At::kBeginning};
}

void write_split_report(std::ostream& out, const Program& program, const graph::CutProgram& cut) {
  out << printable_lines(graph::summary(program, cut));
  if (const std::string note = graph::note_on_large_nodes(program, cut); !note.empty())
    out << printable_lines(note + "\n");
  const std::vector<graph::MissingOperator> missing = graph::missing_operators(program);
  if (!missing.empty())
    out << printable_lines("operators that LibTorch does not have: " + graph::missing_text(missing) + "\n");
}

Json split_json(const std::string& file, const Program& program, const graph::CutProgram& cut) {
  Json json = {{"file", printable(file)}, {"torch_version", program.torch_version}};
  json["stages"] = Json::array();
  const std::vector<graph::StageFigures> figures = graph::figures_of(program, cut);
  for (std::size_t s = 0; s < figures.size(); ++s) {
    const graph::StageGraph& stage = cut.stages[s];
    json["stages"].push_back({{"nodes", figures[s].nodes},
                              {"parameters", figures[s].parameters},
                              {"parameter_bytes", figures[s].parameter_bytes},
                              {"work", figures[s].work},
                              {"bytes_in", figures[s].bytes_in},
                              {"bytes_out", figures[s].bytes_out},
                              {"receives", values_json(program, stage.receives)},
                              {"sends", values_json(program, stage.sends)},
                              {"loads", loads_json(program, stage.loads)}});
  }
  json["edges"] = Json::array();
  for (const graph::CutEdge& edge : cut.edges) {
    Json own = {{"from", edge.from}, {"to", edge.to}};
    own.update(value_json(program, edge.value));
    json["edges"].push_back(std::move(own));
  }
  json["ties"] = Json::array();
  for (const graph::Tie& tie : cut.ties) {
    json["ties"].push_back(
        {{"parameter", program.inputs[static_cast<std::size_t>(tie.input)].name}, {"stages", tie.stages}});
  }
  json["missing_operators"] = missing_json(program);
  return json;
}

Costs costs_of(const Program& program, const graph::CutProgram& cut, const OptimizerState& optimizer) {
  Costs costs;
  costs.memory_in_bytes = true;
  costs.stages.clear();
  for (const graph::StageFigures& figures : graph::figures_of(program, cut)) {
    const auto stage = static_cast<int>(costs.stages.size());
    StageCosts own;
    own.forward = figures.work;
    own.backward_input = figures.work;
    own.backward_weight = figures.work;
    own.backward = 2 * figures.work;
    own.forward_bytes = static_cast<double>(figures.bytes_out);
    own.backward_bytes = stage == 0 ? 0 : gradient_bytes(program, cut, stage - 1);
    const TrainingBytes bytes = training_bytes(program, cut.stages[static_cast<std::size_t>(stage)], optimizer);
    own.activation_memory = bytes.activations;
    own.weight_gradient_memory = bytes.activations;
    own.parameter_memory = bytes.parameters;
    own.gradient_memory = bytes.gradients;
    own.optimizer_memory = bytes.optimizer;
    own.input_memory = bytes.inputs;
    costs.stages.push_back(own);
  }
  return costs;
}

}  // namespace stagecraft::cli
