#include <CLI/CLI.hpp>
#include <charconv>

#include <fmt/format.h>

#include "command.h"
#include "cost_options.h"
#include "failure.h"
#include "formats.h"
#include "input.h"
#include "options.h"
#include "output.h"
#include "simulation_report.h"
#include "stagecraft/view/render.h"

namespace stagecraft::cli {
namespace {

constexpr const char* kSimulateExamples =
    "Bubble is the part of the ranks' time in which they do not compute: of the span, which for a rank lasts from its "
    "first\n"
    "F to its last W, and of the makespan.\n"
    "\n"
    "Examples:\n"
    "  stagecraft simulate schedule.csv --costs costs.json\n"
    "  stagecraft simulate schedule.csv --costs costs.json -o schedule.svg\n"
    "  stagecraft simulate schedule.csv --costs costs.json --replicas 4 --shard parameters --recompute all\n"
    "  stagecraft simulate schedule.csv --costs costs.json --slow-rank 3:1.2 --slow-link 0-1:4\n"
    "  stagecraft simulate schedule.csv --costs costs.json --jitter 0.05 --runs 200 --seed 1 --format json";

/// Ranks and a slowdown factor: "3:1.2" or "0-1:4".
struct Slowdown {
  std::vector<RankId> ranks;
  double factor = 1;
};

Slowdown to_slowdown(const std::string& flag, const std::string& text, std::size_t ranks) {
  Slowdown slowdown;
  const char* at = text.data();
  const char* end = at + text.size();
  bool good = true;
  for (std::size_t i = 0; i < ranks && good; ++i) {
    int rank = -1;
    const auto [after, error] = std::from_chars(at, end, rank);
    good = error == std::errc() && rank >= 0 && after != end && *after == (i + 1 < ranks ? '-' : ':');
    slowdown.ranks.emplace_back(rank);
    if (good) at = after + 1;
  }
  if (good) {
    const auto [after, error] = std::from_chars(at, end, slowdown.factor);
    good = error == std::errc() && after == end;
  }
  if (!good) {
    throw CLI::ValidationError(
        flag, fmt::format("'{}' is not {}", text,
                          ranks == 1 ? "a rank and a factor, such as 3:1.2" : "two ranks and a factor, such as 0-1:4"));
  }
  return slowdown;
}

class SimulateCommand : public Command {
 public:
  explicit SimulateCommand(CLI::App& program)
      : Command(program.add_subcommand("simulate", "Say what a schedule costs: time, bubble, memory, critical path")) {
    add_input(*parser_, file_);
    add_costs(*parser_, costs_);
    add_cost_changes(*parser_, cost_changes_);
    parser_
        ->add_option_function<std::string>(
            "--slow-rank", [this](const std::string& text) { slow_rank_ = to_slowdown("--slow-rank", text, 1); },
            "What if rank R were X times slower, as R:X")
        ->type_name("R:X");
    parser_
        ->add_option_function<std::string>(
            "--slow-link", [this](const std::string& text) { slow_link_ = to_slowdown("--slow-link", text, 2); },
            "What if the link between ranks A and B were X times slower, as A-B:X")
        ->type_name("A-B:X");
    add_number(*parser_, "--jitter", jitter_, 0,
               "What if computes varied: standard deviation as a part of each, up to 1");
    add_count(*parser_, "--runs", runs_, "Simulations with jitter (default: 100)");
    add_number(*parser_, "--seed", seed_, 0, "Of the jitter (default: 0)");
    output_.add_options(*parser_);
    parser_->footer(kSimulateExamples);
  }

  [[nodiscard]] std::string subject() const override { return source_name(file_); }

  int run() override {
    if (file_ == "-" && costs_ == "-") {
      throw Failure(kUnusable, "standard input cannot be both the schedule and its costs: give a file for one of them");
    }
    SimulationReport report;
    report.file = subject();
    report.schedule = read_schedule(file_);
    Costs costs = read_costs(costs_);
    apply(cost_changes_, costs);
    const int ranks = report.schedule.ranks();
    require_fit(costs, report.schedule.stages(), ranks);
    if (!slow_rank_.ranks.empty()) costs = with_slower_rank(costs, ranks, slow_rank_.ranks[0], slow_rank_.factor);
    if (!slow_link_.ranks.empty()) {
      costs = with_slower_link(costs, ranks, slow_link_.ranks[0], slow_link_.ranks[1], slow_link_.factor);
    }
    report.simulation = simulate(report.schedule, costs, {.keep_times = true, .keep_memory = true});
    report.costs = costs;
    report.path = critical_path(report.schedule, report.simulation);
    if (jitter_ > 0) {
      report.jitter = simulate_jitter(report.schedule, costs, jitter_, runs_, static_cast<std::uint64_t>(seed_));
    }
    write(report);
    return kOk;
  }

 private:
  void write(const SimulationReport& report) const {
    const std::string format = output_.format();
    if (format == "none") return;
    write_output(output_.path(), [&](std::ostream& out) {
      if (format == "json") return void(out << to_json(report).dump(2) << '\n');
      if (format == "svg") return write_simulation_svg(out, report.schedule, report.simulation);
      if (format == "trace") return write_simulation_trace(out, report.schedule, report.simulation);
      write_report(out, report);
    });
  }

  std::string file_;
  std::string costs_;
  CostChanges cost_changes_;
  Slowdown slow_rank_;
  Slowdown slow_link_;
  double jitter_ = 0;
  int runs_ = 100;
  double seed_ = 0;
  FormattedOutput output_{{"table", "json", "svg", "trace", "none"}};
};

}  // namespace

std::unique_ptr<Command> make_simulate_command(CLI::App& program) { return std::make_unique<SimulateCommand>(program); }

}  // namespace stagecraft::cli
