#include <CLI/CLI.hpp>

#include <fmt/format.h>
#include <fmt/ostream.h>

#include "check_report.h"
#include "command.h"
#include "formats.h"
#include "options.h"
#include "output.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/schedule/generator.h"

namespace stagecraft::cli {
namespace {

constexpr const char* kScheduleExamples =
    "Examples:\n"
    "  stagecraft schedule 1F1B --ranks 4 --microbatches 8\n"
    "  stagecraft schedule Interleaved1F1B --ranks 4 --stages-per-rank 2 --microbatches 8 -o interleaved.svg\n"
    "  stagecraft schedule ZBVZeroBubble --ranks 4 --microbatches 8 --lower --check --format csv -o zbv.csv\n"
    "  stagecraft schedule DualPipeV --ranks 4 --microbatches 10 --passes send_recv,place_receives --check --format "
    "none";

class ScheduleCommand : public Command {
 public:
  explicit ScheduleCommand(CLI::App& program)
      : Command(program.add_subcommand("schedule", "Make a schedule by name, lower it, check it, write it")),
        output_(*parser_, "table") {
    parser_->add_option("name", name_, "Name from 'stagecraft list'; case, - and _ do not matter")
        ->type_name(std::string(kNameType))
        ->required();
    add_count(*parser_, "--ranks", shape_.ranks, "Number of ranks")->required();
    add_count(*parser_, "--stages-per-rank", shape_.stages_per_rank,
              "Stages on each rank (default: the schedule's own)");
    add_count(*parser_, "--microbatches", shape_.microbatches, "Number of microbatches")->required();
    add_count(*parser_, "--memory-limit", shape_.memory_limit,
              "Most microbatches whose activations a rank may hold, for schedules that adapt to memory");
    parser_->add_flag("--lower", lower_, fmt::format("Lower it by {}", kDefaultLowering));
    add_passes(*parser_, passes_, "Lower it by these passes instead, separated by commas");
    parser_->add_flag("--check", check_, "Verify the result first, and write nothing if it must not run");
    parser_->footer(kScheduleExamples);
  }

  int run() override {
    Schedule schedule = make_schedule(name_, shape_);
    if (lower_ || !passes_.empty()) run_passes(schedule, passes_.empty() ? kDefaultLowering : passes_);
    if (check_) check(schedule);
    output_.write(schedule);
    return kOk;
  }

 private:
  void check(const Schedule& schedule) const {
    const Judgement judgement = judge(schedule);
    if (const Refusal* refusal = judgement.refusal(kCommModels)) throw judgement.failure(schedule.name, *refusal);
    if (output_.format() != "none") return;
    write_output(output_.path(), [&](std::ostream& out) {
      fmt::print(out, "{}: safe under tagged, in_order and rendezvous, {}\n", schedule.name, judged_form(judgement));
    });
  }

  std::string name_;
  Shape shape_;
  std::string passes_;
  bool lower_ = false;
  bool check_ = false;
  ScheduleOutput output_;
};

}  // namespace

std::unique_ptr<Command> make_schedule_command(CLI::App& program) { return std::make_unique<ScheduleCommand>(program); }

}  // namespace stagecraft::cli
