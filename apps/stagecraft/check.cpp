#include <CLI/CLI.hpp>

#include "check_report.h"
#include "command.h"
#include "failure.h"
#include "formats.h"
#include "input.h"
#include "options.h"
#include "output.h"

namespace stagecraft::cli {
namespace {

constexpr const char* kCheckExamples =
    "A compute-only schedule is verified as it stands, then once more lowered by send_recv for the three models of\n"
    "communication: tagged (matched by tag), in_order (matched by order per pair of ranks), rendezvous (both sides "
    "block).\n"
    "Exit code: 0 safe, 1 refused, 2 unreadable.\n"
    "\n"
    "Examples:\n"
    "  stagecraft check schedule.csv\n"
    "  stagecraft check lowered.csv --model in_order --format json\n"
    "  stagecraft schedule GPipe --ranks 4 --microbatches 8 --lower --format csv | stagecraft check -";

class CheckCommand : public Command {
 public:
  explicit CheckCommand(CLI::App& program)
      : Command(program.add_subcommand("check", "Say whether a schedule can run, and what it costs")) {
    add_input(*parser_, file_);
    std::vector<std::string> names;
    for (const CommModel model : kCommModels) names.emplace_back(model_name(model));
    names.emplace_back("all");
    add_choice(*parser_, "--model", model_, names, "The model of communication that has to hold (default: all)");
    output_.add_options(*parser_);
    parser_->footer(kCheckExamples);
  }

  [[nodiscard]] std::string subject() const override { return source_name(file_); }

  int run() override {
    const CheckReport report = examine(subject(), read_rows(file_), models());
    const Refusal* refusal = report.judgement.refusal(report.models);
    if (refusal != nullptr) {
      const Failure failure = report.judgement.failure(subject(), *refusal);
      print_error(failure.what(), failure.details());
    }
    const std::string format = output_.format();
    if (format != "none") {
      write_output(output_.path(), [&](std::ostream& out) {
        format == "json" ? void(out << to_json(report).dump(2) << '\n') : write_report(out, report);
      });
    }
    return refusal == nullptr ? kOk : kRefused;
  }

 private:
  [[nodiscard]] std::vector<CommModel> models() const {
    std::vector<CommModel> chosen;
    for (const CommModel model : kCommModels) {
      if (model_ == "all" || model_ == model_name(model)) chosen.push_back(model);
    }
    return chosen;
  }

  std::string file_;
  std::string model_ = "all";
  FormattedOutput output_{{"table", "json", "none"}};
};

}  // namespace

std::unique_ptr<Command> make_check_command(CLI::App& program) { return std::make_unique<CheckCommand>(program); }

}  // namespace stagecraft::cli
