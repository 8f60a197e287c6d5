// `stagecraft plan`: finds a schedule for given costs and memory, and reports on it.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <iostream>
#include <ostream>

#include <fmt/format.h>

#include "command.h"
#include "cost_options.h"
#include "failure.h"
#include "formats.h"
#include "input.h"
#include "options.h"
#include "output.h"
#include "plan_report.h"
#include "stagecraft/plan/partition.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/view/render.h"

namespace stagecraft::cli {
namespace {

constexpr const char* kPlanExamples =
    "Looks for the schedule with the smallest span. The same seed gives the same schedule, unless the time budget or "
    "Ctrl-C\n"
    "ends the search early; the best so far is written then. With -o FILE.csv or FILE.svg the report goes to standard "
    "output.\n"
    "\n"
    "Examples:\n"
    "  stagecraft plan --ranks 8 --microbatches 24 --costs costs.json\n"
    "  stagecraft plan --ranks 8 --microbatches 24 --costs costs.json --memory-limit 16 -o planned.csv\n"
    "  stagecraft plan --ranks 8 --microbatches 24 --costs costs.json --placement v --memory-limit 10 -o planned.svg\n"
    "  stagecraft plan --ranks 8 --microbatches 24 --costs bytes.json --replicas 4 --shard parameters --memory-limit "
    "80GiB\n"
    "  stagecraft plan --ranks 2 --microbatches 4 --costs costs.json --exact --format json";

std::atomic<bool> interrupted = false;

/// During its lifetime, the first Ctrl-C asks the search to end; the second ends the program.
class InterruptGuard {
 public:
  InterruptGuard() {
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = true; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &action, &before_);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  ~InterruptGuard() { ::sigaction(SIGINT, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

/// A progress line on standard error, if that is a terminal; rewritten with each update.
class ProgressLine {
 public:
  ~ProgressLine() { clear(); }

  void show(const PlanProgress& progress) {
    if (::isatty(STDERR_FILENO) != 1) return;
    std::cerr << fmt::format("\r\x1b[K{:3.0f}%  {:.0f} s  {}: bubble {:.2f}%, lower bound {:.6g}, span {:.6g}",
                             100 * progress.part, progress.seconds, progress.placement, 100 * progress.bubble,
                             progress.lower_bound, progress.span)
              << std::flush;
    shown_ = true;
  }
  void clear() {
    if (shown_) std::cerr << "\r\x1b[K" << std::flush;
    shown_ = false;
  }

 private:
  bool shown_ = false;
};

class PlanCommand : public Command {
 public:
  explicit PlanCommand(CLI::App& program)
      : Command(program.add_subcommand("plan", "Find a schedule for given costs and memory")) {
    add_count(*parser_, "--ranks", request_.ranks, "Number of ranks")->required();
    add_count(*parser_, "--microbatches", request_.microbatches, "Number of microbatches")->required();
    add_costs(*parser_, costs_);
    add_memory_limit(*parser_, limit_);
    add_cost_changes(*parser_, cost_changes_);
    add_choice(*parser_, "--placement", placement_, {"linear", "loop", "v", "any"},
               "Where stages may lie (default: any)");
    add_count(*parser_, "--stages-per-rank", request_.stages_per_rank,
              "Stages on each rank (default: as the costs have, else 1, or 2 for loop and v)");
    add_number(*parser_, "--time-budget", request_.time_budget, 0.001, "Seconds at most (default: 30)");
    add_number(*parser_, "--effort", request_.effort, 0.001, "How much to search, as a factor (default: 1)");
    parser_->add_flag("--exact", request_.exact, "Solve exactly afterwards: small cases only, needs the program cbc");
    add_number(*parser_, "--seed", seed_, 0, "Of the search (default: 0)");
    add_count(*parser_, "--threads", request_.threads, "Threads to use (default: one per core)");
    parser_->add_option("--stage-costs", stage_costs_, "With costs by layer: write the costs of the stages to FILE")
        ->type_name(std::string(kFileType));
    output_.add_options(*parser_, "table and json are reports, csv the schedule, svg its time and memory");
    parser_->footer(kPlanExamples);
  }

  int run() override {
    CostFile file = read_cost_file(costs_);
    apply(cost_changes_, file);
    request_.costs = file.costs;
    request_.memory_limit = limit_.in_unit_of(file.costs, "--memory-limit");
    request_.seed = static_cast<std::uint64_t>(seed_);
    request_.placement = placement_ == "linear" ? PlacementChoice::kLinear
                         : placement_ == "loop" ? PlacementChoice::kLoop
                         : placement_ == "v"    ? PlacementChoice::kV
                                                : PlacementChoice::kAny;
    if (file.layers.empty() && !stage_costs_.empty()) {
      throw Failure(kUnusable, "--stage-costs is for costs by layer, but the costs are by stage already: leave it out");
    }
    Cuts cuts;
    const PlanResult result = search(file.layers, cuts);
    write(result, cuts);
    if (!stage_costs_.empty()) {
      write_output(stage_costs_, [&](std::ostream& out) { out << costs_to_json(request_.costs); });
    }
    return kOk;
  }

 private:
  PlanResult search(const std::vector<Layer>& layers, Cuts& cuts) {
    const InterruptGuard guard;
    ProgressLine line;
    request_.progress = [&](const PlanProgress& progress) { line.show(progress); };
    request_.stop = [] { return interrupted.load(); };
    if (layers.empty()) return plan(request_);
    PartitionPlan found = plan_partition(layers, request_);
    cuts = std::move(found.cuts);
    request_.costs = std::move(found.costs);
    return std::move(found.plan);
  }

  void write(const PlanResult& result, const Cuts& cuts) const {
    const std::string format = output_.format();
    if (format == "none") return;
    write_output(output_.path(), [&](std::ostream& out) {
      if (format == "csv") return write_csv(out, result.schedule);
      if (format == "json") return void(out << plan_json(request_, result, cuts).dump(2) << '\n');
      if (format == "svg") {
        const Simulation kept = simulate(result.schedule, request_.costs, {.keep_times = true, .keep_memory = true});
        return write_simulation_svg(out, result.schedule, kept);
      }
      write_plan_report(out, request_, result, cuts);
    });
    const bool schedule_in_file = (format == "csv" || format == "svg") && output_.path() != "-";
    if (schedule_in_file) {
      write_output("-", [&](std::ostream& out) { write_plan_report(out, request_, result, cuts); });
    }
  }

  PlanRequest request_;
  std::string costs_;
  CostChanges cost_changes_;
  MemoryLimit limit_;
  std::string stage_costs_;
  std::string placement_ = "any";
  double seed_ = 0;
  FormattedOutput output_{{"table", "json", "csv", "svg", "none"}};
};

}  // namespace

std::unique_ptr<Command> make_plan_command(CLI::App& program) { return std::make_unique<PlanCommand>(program); }

}  // namespace stagecraft::cli
