#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include "command.h"
#include "failure.h"
#include "formats.h"
#include "input.h"
#include "options.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/passes/verify.h"

namespace stagecraft::cli {
namespace {

constexpr const char* kLowerExamples =
    "Examples:\n"
    "  stagecraft lower schedule.csv -o lowered.csv\n"
    "  stagecraft schedule GPipe --ranks 4 --microbatches 8 --format csv | stagecraft lower - | stagecraft check -\n"
    "  stagecraft lower schedule.csv --passes merge_backward,send_recv,place_receives\n"
    "  stagecraft lower lowered.csv --passes place_receives";

class LowerCommand : public Command {
 public:
  explicit LowerCommand(CLI::App& program)
      : Command(program.add_subcommand("lower", "Lower a schedule by passes until a runtime can execute it")),
        output_(*parser_, "csv") {
    add_input(*parser_, file_);
    add_passes(*parser_, passes_, fmt::format("Passes to run, separated by commas (default: {})", kDefaultLowering));
    parser_->footer(kLowerExamples);
  }

  [[nodiscard]] std::string subject() const override { return source_name(file_); }

  int run() override {
    Schedule schedule = read_schedule(file_);
    // Refuses only faults under every model: a pass may repair a refusal under a single model.
    if (const auto fault = verify(schedule).fault) throw refused(subject(), *fault);
    run_passes(schedule, passes_);
    output_.write(schedule);
    return kOk;
  }

 private:
  std::string file_;
  std::string passes_ = std::string(kDefaultLowering);
  ScheduleOutput output_;
};

}  // namespace

std::unique_ptr<Command> make_lower_command(CLI::App& program) { return std::make_unique<LowerCommand>(program); }

}  // namespace stagecraft::cli
