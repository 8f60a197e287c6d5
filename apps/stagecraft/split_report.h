#pragma once

#include <iosfwd>
#include <string>

#include "stagecraft/graph/cut.h"
#include "stagecraft/sim/costs.h"

namespace stagecraft::cli {

/// Reports on the stages of a cut model and on the values that cross each cut.
void write_split_report(std::ostream& out, const graph::Program& program, const graph::CutProgram& cut);
void write_json_split_report(std::ostream& out, const std::string& file, const graph::Program& program,
                             const graph::CutProgram& cut);

/// Costs for the simulator and the planner. Times are estimated operations; an I and a W each cost as much as the F.
Costs costs_of(const graph::Program& program, const graph::CutProgram& cut);

}  // namespace stagecraft::cli
