// `stagecraft profile`: finds the costs of a run from its recorded timeline, and reports on them.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <ostream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ostream.h>

#include "command.h"
#include "failure.h"
#include "formats.h"
#include "input.h"
#include "options.h"
#include "output.h"
#include "report_text.h"
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

constexpr double kMilliseconds = 1e3;

void write_stages(std::ostream& out, const Profile& profile) {
  fmt::print(out, "\n{:>5}  {:>4}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>11}  {:>11}\n", "STAGE", "RANK", "F ms",
             "B ms", "I ms", "W ms", "PAUSE ms", "BYTES AFTER", "BYTES BACK");
  bool any_assumed = false;
  for (std::size_t s = 0; s < profile.costs.stages.size(); ++s) {
    const StageCosts& stage = profile.costs.stages[s];
    const auto& assumed = profile.assumed_splits;
    const bool is_assumed = std::find(assumed.begin(), assumed.end(), StageId(s)) != assumed.end();
    any_assumed |= is_assumed;
    const char* mark = is_assumed ? "*" : " ";
    fmt::print(out, "{:>5}  {:>4}  {:>9.4f}  {:>9.4f}  {:>8.4f}{}  {:>8.4f}{}  {:>9.4f}  {:>11.0f}  {:>11.0f}\n", s,
               profile.placement.rank_of(StageId(s)).value, kMilliseconds * stage.forward,
               kMilliseconds * stage.backward, kMilliseconds * stage.backward_input, mark,
               kMilliseconds * stage.backward_weight, mark, kMilliseconds * stage.optimizer, stage.forward_bytes,
               stage.backward_bytes);
  }
  if (any_assumed) {
    fmt::print(out, "* no I and W were recorded: divided by rule; add a run of a schedule that splits backwards\n");
  }
}

std::pair<double, double> range_of_paces(const Profile& profile) {
  double fastest = 1;
  double slowest = 1;
  for (const std::vector<double>& step : profile.paces) {
    const auto [least, most] = std::minmax_element(step.begin(), step.end());
    fastest = std::min(fastest, *least);
    slowest = std::max(slowest, *most);
  }
  return {fastest, slowest};
}

/// Costs of stages and links in milliseconds, and for each run the measured and the predicted period.
void write_profile_report(std::ostream& out, const Profile& profile) {
  write_line(out, "ranks", std::to_string(profile.placement.ranks()));
  write_line(out, "stages", fmt::format("{}, placement {}", profile.placement.stages(), profile.placement.style()));
  write_line(out, "jitter", fmt::format("{:.4f}, for simulate --jitter", profile.jitter));
  const auto [fastest, slowest] = range_of_paces(profile);
  write_line(out, "pace", fmt::format("{:.3f} to {:.3f} of a rank's typical step", fastest, slowest));
  write_stages(out, profile);
  if (!profile.costs.links.empty())
    fmt::print(out, "\n{:>5}  {:>4}  {:>10}  {:>10}\n", "FROM", "TO", "LATENCY ms", "MB/s");
  for (const NamedLink& link : profile.costs.links) {
    fmt::print(out, "{:>5}  {:>4}  {:>10.4f}  {:>10}\n", link.from.value, link.to.value,
               kMilliseconds * link.costs.latency,
               link.costs.bandwidth > 0 ? fmt::format("{:.1f}", link.costs.bandwidth / 1e6) : "-");
  }
  fmt::print(out, "\n{:<22}  {:>5}  {:>12}  {:>12}  {:>7}\n", "RUN", "STEPS", "MEASURED ms", "SIMULATED ms", "RATIO");
  for (const ProfiledRun& run : profile.runs) {
    const double simulated = predicted_period(profile, run.schedule);
    fmt::print(out, "{:<22}  {:>5}  {:>12.4f}  {:>12.4f}  {:>7.3f}\n", printable(run.name), run.steps,
               kMilliseconds * run.measured_period, kMilliseconds * simulated,
               run.measured_period > 0 ? simulated / run.measured_period : 1);
  }
}

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
