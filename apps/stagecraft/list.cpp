#include <CLI/CLI.hpp>

#include "command.h"
#include "failure.h"
#include "formats.h"
#include "list_report.h"
#include "output.h"

namespace stagecraft::cli {
namespace {

class ListCommand : public Command {
 public:
  explicit ListCommand(CLI::App& program)
      : Command(program.add_subcommand("list", "The known schedules with placement, bubble and memory; the passes")) {
    output_.add_options(*parser_);
    parser_->footer(
        "Examples:\n"
        "  stagecraft list\n"
        "  stagecraft list --format json");
  }

  int run() override {
    const bool json = output_.format() == "json";
    write_output(output_.path(),
                 [&](std::ostream& out) { json ? void(out << list_json().dump(2) << '\n') : write_list(out); });
    return kOk;
  }

 private:
  FormattedOutput output_{{"table", "json"}};
};

}  // namespace

std::unique_ptr<Command> make_list_command(CLI::App& program) { return std::make_unique<ListCommand>(program); }

}  // namespace stagecraft::cli
