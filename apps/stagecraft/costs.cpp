#include <CLI/CLI.hpp>

#include "command.h"
#include "failure.h"
#include "input.h"
#include "options.h"
#include "output.h"
#include "stagecraft/sim/cost_file.h"

namespace stagecraft::cli {
namespace {

class CostsCommand : public Command {
 public:
  explicit CostsCommand(CLI::App& program)
      : Command(program.add_subcommand("costs", "Check a file of costs and write it in full, or an example")) {
    CLI::Option* file =
        parser_->add_option("file", file_, "Costs in JSON; - reads standard input")->type_name(std::string(kFileType));
    CLI::Option* example = parser_->add_flag("--example", example_, "Write an example with every key instead");
    example->excludes(file);
    parser_->add_flag("--bytes", in_bytes_, "With --example: memory in bytes, of a large model")->needs(example);
    add_output(*parser_, output_);
    parser_->footer(
        "Examples:\n"
        "  stagecraft costs --example -o costs.json\n"
        "  stagecraft costs --example --bytes -o costs.json\n"
        "  stagecraft costs costs.json");
  }

  [[nodiscard]] std::string subject() const override { return {}; }

  int run() override {
    if (!example_ && file_.empty()) {
      throw Failure(kUnusable, "give a file of costs to check, or --example: see 'stagecraft costs --help'");
    }
    const std::string text = !example_   ? costs_to_json(read_costs(file_))
                             : in_bytes_ ? example_costs_in_bytes()
                                         : example_costs();
    write_output(output_, [&](std::ostream& out) { out << text; });
    return kOk;
  }

 private:
  std::string file_;
  bool example_ = false;
  bool in_bytes_ = false;
  std::string output_ = "-";
};

}  // namespace

std::unique_ptr<Command> make_costs_command(CLI::App& program) { return std::make_unique<CostsCommand>(program); }

}  // namespace stagecraft::cli
