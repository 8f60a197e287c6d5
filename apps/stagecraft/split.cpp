// `stagecraft split`: cuts an exported model into stages, and reports on what crosses the cuts.

#include <CLI/CLI.hpp>
#include <ostream>
#include <string>

#include "command.h"
#include "failure.h"
#include "formats.h"
#include "input.h"
#include "model_memory.h"
#include "options.h"
#include "output.h"
#include "split_report.h"
#include "stage_times.h"
#include "stagecraft/graph/cut.h"
#include "stagecraft/sim/cost_file.h"

namespace stagecraft::cli {
namespace {

constexpr const char* kSplitExamples =
    "Give one of --stages, --at and --marked. 'stagecraft model FILE' lists modules and where the model can be cut.\n"
    "\n"
    "Examples:\n"
    "  stagecraft split gpt.pt2 --stages 4\n"
    "  stagecraft split gpt.pt2 --at blocks.4 --at blocks.7:end --format json\n"
    "  stagecraft split gpt.pt2 --stages 4 --costs costs.json\n"
    "  stagecraft split gpt.pt2 --stages 4 --measure --costs costs.json";

graph::ModuleCut checked_module_cut(const std::string& text) {
  try {
    return to_module_cut(text);
  } catch (const InvalidArgument& error) {
    throw CLI::ValidationError("--at", error.what());
  }
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
              for (const std::string& one : all) cuts_.push_back(checked_module_cut(one));
            },
            "Cut before MODULE, or after it with :end; once per cut")
        ->type_name("MODULE[:end]")
        ->allow_extra_args(false);  // the file argument may follow
    parser_->add_flag("--marked", marked_, "Cut where the model calls pipe_split(), or changes its stage annotation");
    parser_
        ->add_option("--costs", costs_,
                     "Write the stages' costs to FILE, for plan and simulate; times in operations, memory in bytes")
        ->type_name(std::string(kFileType));
    parser_->add_flag("--measure", measure_,
                      "Time each stage on this machine, with random inputs of the exported size; --stages balances by "
                      "these times, and --costs has them, in seconds");
    parser_->add_option("--load", load_, "With --measure: a shared library that registers operators of the model")
        ->type_name("LIB.so")
        ->allow_extra_args(false);
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
    if (!load_.empty() && !measure_) throw Failure(kUnusable, "--load is about --measure: give that too");
    const graph::Program program = input_.read();
    Costs times;
    const graph::CutProgram cut = graph::cut(program, places(program, times));
    const std::string format = output_.format();
    if (format != "none") {
      write_output(output_.path(), [&](std::ostream& out) {
        if (format == "json") {
          Json json = split_json(input_.file(), program, cut);
          if (measure_) add_times(json, times);
          return void(out << json.dump(2) << '\n');
        }
        write_split_report(out, program, cut);
        if (measure_) out << '\n' << times_text(times);
      });
    }
    if (!costs_.empty()) {
      Costs costs = costs_of(program, cut, optimizer_);
      if (measure_) set_times(costs, times);
      write_output(costs_, [&](std::ostream& out) { out << costs_to_json(costs); });
    }
    return kOk;
  }

 private:
  /// Also measures the stages, if asked to.
  [[nodiscard]] std::vector<int> places(const graph::Program& program, Costs& times) const {
    const MeasuredModel model = {input_.file(), input_.model(), load_};
    if (measure_ && stages_ > 0) return measured_places(model, program, stages_, times);
    std::vector<int> found = marked_       ? graph::marked_places(program)
                             : stages_ > 0 ? graph::balanced_places(program, stages_)
                                           : graph::places_of(program, cuts_);
    if (measure_) times = measured_times(model, found);
    return found;
  }

  static void add_times(Json& json, const Costs& times) {
    for (std::size_t i = 0; i < times.stages.size(); ++i) {
      const StageCosts& own = times.stages[i];
      json["stages"][i]["seconds"] = {{"forward", own.forward},
                                      {"backward", own.backward},
                                      {"backward_input", own.backward_input},
                                      {"backward_weight", own.backward_weight}};
    }
  }

  ModelInput input_;
  int stages_ = 0;
  std::vector<graph::ModuleCut> cuts_;
  bool marked_ = false;
  std::string costs_;
  bool measure_ = false;
  std::vector<std::string> load_;
  OptimizerState optimizer_;
  FormattedOutput output_{{"table", "json", "none"}};
};

}  // namespace

std::unique_ptr<Command> make_split_command(CLI::App& program) { return std::make_unique<SplitCommand>(program); }

}  // namespace stagecraft::cli
