// `stagecraft split`: cuts an exported model into stages, and reports on what crosses the cuts.

#include <CLI/CLI.hpp>
#include <ostream>
#include <string>

#include <fmt/format.h>

#include "command.h"
#include "failure.h"
#include "formats.h"
#include "input.h"
#include "model_facts.h"
#include "model_memory.h"
#include "options.h"
#include "output.h"
#include "report_text.h"
#include "stagecraft/graph/cut.h"
#include "stagecraft/graph/report.h"
#include "stagecraft/sim/cost_file.h"
#include "stagecraft/sim/costs.h"

namespace stagecraft::cli {
namespace {

using graph::Program;
using graph::ValueId;

constexpr const char* kSplitExamples =
    "Give one of --stages, --at and --marked. 'stagecraft model FILE' lists modules and where the model can be cut.\n"
    "\n"
    "Examples:\n"
    "  stagecraft split gpt.pt2 --stages 4\n"
    "  stagecraft split gpt.pt2 --at blocks.4 --at blocks.7:end --format json\n"
    "  stagecraft split gpt.pt2 --stages 4 --costs costs.json";

/// Parses "blocks.4", "blocks.4:beginning" or "blocks.4:end".
graph::ModuleCut to_module_cut(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::string side = colon == std::string::npos ? "beginning" : text.substr(colon + 1);
  if (side != "beginning" && side != "end") {
    throw CLI::ValidationError("--at",
                               fmt::format("'{}' says '{}' after the colon: it must be beginning or end", text, side));
  }
  return {text.substr(0, colon), side == "end" ? graph::ModuleCut::At::kEnd : graph::ModuleCut::At::kBeginning};
}

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

/// Reports on the stages of a cut model and on the values that cross each cut.
void write_split_report(std::ostream& out, const Program& program, const graph::CutProgram& cut) {
  out << printable_lines(graph::summary(program, cut));
}

void write_json_split_report(std::ostream& out, const std::string& file, const Program& program,
                             const graph::CutProgram& cut) {
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
  out << json.dump(2) << '\n';
}

/// Costs for the simulator and the planner. Times are estimated operations; an I and a W each cost as much as the F.
/// Memory is in bytes.
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

class SplitCommand : public Command {
 public:
  explicit SplitCommand(CLI::App& program)
      : Command(program.add_subcommand("split", "Cut an exported model into stages, and say what crosses the cuts")),
        input_(*parser_) {
    add_count(*parser_, "--stages", stages_, "So many stages, about equally large");
    parser_
        ->add_option_function<std::vector<std::string>>(
            "--at",
            [this](const std::vector<std::string>& all) {
              for (const std::string& one : all) cuts_.push_back(to_module_cut(one));
            },
            "Cut before MODULE, or after it with :end; once per cut")
        ->type_name("MODULE[:end]")
        ->allow_extra_args(false);  // the file argument may follow
    parser_->add_flag("--marked", marked_, "Cut where the model calls pipe_split(), or changes its stage annotation");
    parser_
        ->add_option("--costs", costs_,
                     "Write the stages' costs to FILE, for plan and simulate; times in operations, memory in bytes")
        ->type_name(std::string(kFileType));
    add_choice(*parser_, "--optimizer", optimizer_.name, {"sgd", "momentum", "adam"},
               "With --costs: whose state takes memory, in the type of the parameters (default: adam)");
    output_.add_options(*parser_);
    parser_->footer(kSplitExamples);
  }

  [[nodiscard]] std::string subject() const override { return input_.file(); }

  int run() override {
    if ((stages_ > 0) + static_cast<int>(!cuts_.empty()) + static_cast<int>(marked_) != 1) {
      throw Failure(
          kUnusable,
          "give exactly one of --stages, --at and --marked to say where to cut: see 'stagecraft split --help'");
    }
    const graph::Program program = input_.read();
    const graph::CutProgram cut = graph::cut(program, places(program));
    const std::string format = output_.format();
    if (format != "none") {
      write_output(output_.path(), [&](std::ostream& out) {
        if (format == "json") return write_json_split_report(out, input_.file(), program, cut);
        write_split_report(out, program, cut);
      });
    }
    if (!costs_.empty()) {
      write_output(costs_, [&](std::ostream& out) { out << costs_to_json(costs_of(program, cut, optimizer_)); });
    }
    return kOk;
  }

 private:
  [[nodiscard]] std::vector<int> places(const graph::Program& program) const {
    if (marked_) return graph::marked_places(program);
    return stages_ > 0 ? graph::balanced_places(program, stages_) : graph::places_of(program, cuts_);
  }

  ModelInput input_;
  int stages_ = 0;
  std::vector<graph::ModuleCut> cuts_;
  bool marked_ = false;
  std::string costs_;
  OptimizerState optimizer_;
  FormattedOutput output_{{"table", "json", "none"}};
};

}  // namespace

std::unique_ptr<Command> make_split_command(CLI::App& program) { return std::make_unique<SplitCommand>(program); }

}  // namespace stagecraft::cli
