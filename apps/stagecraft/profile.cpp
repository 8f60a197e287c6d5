// `stagecraft profile`: finds the costs of a run from its recorded timeline, and reports on them.

#include <CLI/CLI.hpp>
#include <charconv>
#include <ostream>

#include <fmt/format.h>

#include "command.h"
#include "failure.h"
#include "formats.h"
#include "input.h"
#include "options.h"
#include "output.h"
#include "profile_report.h"
#include "stagecraft/sim/cost_file.h"
#include "stagecraft/sim/profile.h"
#include "stagecraft/view/timeline.h"

namespace stagecraft::cli {
namespace {

constexpr const char* kProfileExamples =
    "A timeline is what Pipeline::record_timeline records and write_timeline_trace writes, all ranks and some steps. "
    "Several,\n"
    "of different schedules over the same stages, tell more: one with whole backwards and one with split ones tell B, "
    "I "
    "and\n"
    "W. Times are in seconds. With -o FILE.json the report goes to standard output.\n"
    "\n"
    "Examples:\n"
    "  stagecraft profile timeline.json\n"
    "  stagecraft profile 1f1b.json zb.json -o costs.json\n"
    "  stagecraft profile timeline.json --skip 3 --format json";

class ProfileCommand : public Command {
 public:
  explicit ProfileCommand(CLI::App& program)
      : Command(program.add_subcommand("profile", "Find the costs of a run from its recorded timeline")) {
    parser_->add_option("files", files_, "Timelines in JSON; - reads standard input")
        ->type_name(std::string(kFileType))
        ->required()
        ->expected(1, -1);
    parser_
        ->add_option_function<std::string>(
            "--skip", [this](const std::string& text) { skip_ = to_steps(text); },
            "Steps at the beginning of each that do not count (default: 1 where there are several)")
        ->type_name(std::string(kNumberType));
    output_.add_options(*parser_, "table is a report, json the costs");
    parser_->footer(kProfileExamples);
  }

  int run() override {
    std::vector<Recording> recordings;
    for (const std::string& file : files_) {
      recordings.push_back(read_parsed(file, parse_timeline_trace));
      if (recordings.back().name.empty()) recordings.back().name = schedule_name(file);
      check_alone(file, recordings.back());
    }
    const Profile found = profile(recordings, {.skip = skip_});
    const std::string format = output_.format();
    if (format == "none") return kOk;
    write_output(output_.path(), [&](std::ostream& out) {
      format == "json" ? void(out << costs_to_json(found.costs)) : write_profile_report(out, found);
    });
    if (format == "json" && output_.path() != "-") {
      write_output("-", [&](std::ostream& out) { write_profile_report(out, found); });
    }
    return kOk;
  }

 private:
  static int to_steps(const std::string& text) {
    int value = -1;
    const char* end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || last != end || value < 0) {
      throw CLI::ValidationError("--skip", fmt::format("'{}' is not a whole number from 0 up", text));
    }
    return value;
  }

  /// Profiles one file by itself, so that errors name the faulty file.
  void check_alone(const std::string& file, const Recording& recording) const {
    try {
      (void)profile(std::span(&recording, 1), {.skip = skip_});
    } catch (const Error& error) {
      throw Failure(kUnusable, fmt::format("{}: {}", source_name(file), error.what()));
    }
  }

  std::vector<std::string> files_;
  int skip_ = -1;
  FormattedOutput output_{{"table", "json", "none"}};
};

}  // namespace

std::unique_ptr<Command> make_profile_command(CLI::App& program) { return std::make_unique<ProfileCommand>(program); }

}  // namespace stagecraft::cli
