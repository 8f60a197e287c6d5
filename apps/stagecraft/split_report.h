#pragma once

#include <iosfwd>
#include <string>

#include "stagecraft/graph/cut.h"
#include "stagecraft/sim/costs.h"

namespace stagecraft::cli {

/// What each stage of a cut model has, and what crosses each cut.
void write_split_report(std::ostream& out, const graph::Program& program, const graph::CutProgram& cut);
void write_json_split_report(std::ostream& out, const std::string& file, const graph::Program& program,
                             const graph::CutProgram& cut);

/// Costs for the simulator and the planner. Times are estimated work: a forward, and each half of a backward as much
/// again.
Costs costs_of(const graph::Program& program, const graph::CutProgram& cut);

}  // namespace stagecraft::cli
