// `stagecraft model`: reports on what an exported model is made of, and where it can be cut.

#include <CLI/CLI.hpp>
#include <ostream>
#include <string>

#include "command.h"
#include "failure.h"
#include "formats.h"
#include "input.h"
#include "model_report.h"
#include "options.h"
#include "output.h"

namespace stagecraft::cli {
namespace {

constexpr const char* kModelExamples =
    "Work is estimated, in floating-point operations of the forward with the sizes of the export. Bytes across a cut "
    "are "
    "per\n"
    "microbatch of that size.\n"
    "\n"
    "Examples:\n"
    "  stagecraft model gpt.pt2\n"
    "  stagecraft model gpt.pt2 --depth 2 --parameters\n"
    "  stagecraft model gpt.pt2 --format json";

class ModelCommand : public Command {
 public:
  explicit ModelCommand(CLI::App& program)
      : Command(program.add_subcommand("model", "What an exported model is made of, and where it can be cut")),
        input_(*parser_) {
    parser_->add_flag("--parameters", options_.parameters, "List the parameters too");
    add_count(*parser_, "--depth", options_.depth, "Levels of modules to show (default: 3)");
    output_.add_options(*parser_);
    parser_->footer(kModelExamples);
  }

  [[nodiscard]] std::string subject() const override { return input_.file(); }

  int run() override {
    const graph::Program program = input_.read();
    const bool json = output_.format() == "json";
    write_output(output_.path(), [&](std::ostream& out) {
      if (json) return void(out << model_json(input_.file(), program).dump(2) << '\n');
      write_model_report(out, input_.file(), program, options_);
    });
    return kOk;
  }

 private:
  ModelInput input_;
  ModelReportOptions options_;
  FormattedOutput output_{{"table", "json"}};
};

}  // namespace

std::unique_ptr<Command> make_model_command(CLI::App& program) { return std::make_unique<ModelCommand>(program); }

}  // namespace stagecraft::cli
