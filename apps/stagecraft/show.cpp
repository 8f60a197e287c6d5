#include <CLI/CLI.hpp>

#include "command.h"
#include "failure.h"
#include "formats.h"
#include "input.h"
#include "options.h"
#include "stagecraft/sim/step_simulator.h"

namespace stagecraft::cli {
namespace {

constexpr const char* kShowExamples =
    "Examples:\n"
    "  stagecraft show schedule.csv\n"
    "  stagecraft show schedule.csv -o schedule.svg\n"
    "  stagecraft show lowered.csv --align slots\n"
    "  stagecraft show lowered.csv --format trace -o lowered.json    (open it at https://ui.perfetto.dev)";

class ShowCommand : public Command {
 public:
  explicit ShowCommand(CLI::App& program)
      : Command(program.add_subcommand("show", "Draw a schedule, or write it in another format")),
        output_(*parser_, "table") {
    add_input(*parser_, file_);
    add_choice(
        *parser_, "--align", align_, {"auto", "slots", "steps"},
        "slots: as they stand in the file; steps: when each would run if every action took one step; "
        "auto (default): pictures by steps unless the slots already are a timetable, csv and json as they stand");
    parser_->footer(kShowExamples);
  }

  [[nodiscard]] std::string subject() const override { return source_name(file_); }

  int run() override {
    const Schedule schedule = read_schedule(file_);
    if (align_ == "steps") {
      output_.write_slots(spread_over_steps(schedule, simulate_steps(schedule)));
    } else if (align_ == "slots") {
      output_.write_slots(schedule);
    } else {
      output_.write(schedule);
    }
    return kOk;
  }

 private:
  std::string file_;
  std::string align_ = "auto";
  ScheduleOutput output_;
};

}  // namespace

std::unique_ptr<Command> make_show_command(CLI::App& program) { return std::make_unique<ShowCommand>(program); }

}  // namespace stagecraft::cli
