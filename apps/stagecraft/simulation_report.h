#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "report_text.h"
#include "stagecraft/sim/critical_path.h"
#include "stagecraft/sim/simulator.h"
#include "stagecraft/sim/what_if.h"

namespace stagecraft::cli {

/// Everything that `simulate` reports about a schedule.
struct SimulationReport {
  std::string file;
  Costs costs;
  Schedule schedule;
  Simulation simulation;
  std::vector<CriticalAction> path;
  std::optional<JitterOutcome> jitter;
};

void write_report(std::ostream& out, const SimulationReport& report);
Json to_json(const SimulationReport& report);

/// One line per schedule, the shortest first.
void write_comparison(std::ostream& out, const std::vector<SimulationReport>& reports);
Json comparison_json(const std::vector<SimulationReport>& reports);

}  // namespace stagecraft::cli
