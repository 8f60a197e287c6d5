#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

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
void write_json_report(std::ostream& out, const SimulationReport& report);

/// One line per schedule, the shortest first.
void write_comparison(std::ostream& out, const std::vector<SimulationReport>& reports);
void write_json_comparison(std::ostream& out, const std::vector<SimulationReport>& reports);

}  // namespace stagecraft::cli
