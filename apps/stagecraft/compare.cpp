#include <CLI/CLI.hpp>
#include <algorithm>

#include "command.h"
#include "cost_options.h"
#include "failure.h"
#include "formats.h"
#include "input.h"
#include "options.h"
#include "output.h"
#include "simulation_report.h"

namespace stagecraft::cli {
namespace {

class CompareCommand : public Command {
 public:
  explicit CompareCommand(CLI::App& program)
      : Command(
            program.add_subcommand("compare", "Simulate several schedules under the same costs, the shortest first")) {
    parser_->add_option("files", files_, "Schedules in CSV")
        ->type_name(std::string(kFileType))
        ->required()
        ->expected(1, -1);
    add_costs(*parser_, costs_);
    add_cost_changes(*parser_, cost_changes_);
    output_.add_options(*parser_);
    parser_->footer(
        "Examples:\n"
        "  stagecraft compare 1f1b.csv zbv.csv planned.csv --costs costs.json\n"
        "  stagecraft compare *.csv --costs costs.json --format json");
  }

  int run() override {
    Costs costs = read_costs(costs_);
    apply(cost_changes_, costs);
    std::vector<SimulationReport> reports;
    for (const std::string& file : files_) {
      try {
        SimulationReport& report = reports.emplace_back();
        report.file = source_name(file);
        report.costs = costs;
        report.schedule = read_schedule(file);
        report.simulation = simulate(report.schedule, costs);
      } catch (...) {
        return report_exception(source_name(file));
      }
    }
    std::stable_sort(reports.begin(), reports.end(), [](const SimulationReport& a, const SimulationReport& b) {
      return a.simulation.span < b.simulation.span;
    });
    const std::string format = output_.format();
    if (format == "none") return kOk;
    write_output(output_.path(), [&](std::ostream& out) {
      format == "json" ? void(out << comparison_json(reports).dump(2) << '\n') : write_comparison(out, reports);
    });
    return kOk;
  }

 private:
  std::vector<std::string> files_;
  std::string costs_;
  CostChanges cost_changes_;
  FormattedOutput output_{{"table", "json", "none"}};
};

}  // namespace

std::unique_ptr<Command> make_compare_command(CLI::App& program) { return std::make_unique<CompareCommand>(program); }

}  // namespace stagecraft::cli
