#pragma once

#include <iosfwd>
#include <string>

#include "model_memory.h"
#include "report_text.h"
#include "stagecraft/graph/cut.h"
#include "stagecraft/sim/costs.h"

/// Reports on the stages of a cut model, on the values that cross each cut, and on the costs of the stages.
namespace stagecraft::cli {

/// Parses "blocks.4", "blocks.4:beginning" or "blocks.4:end". Throws InvalidArgument.
graph::ModuleCut to_module_cut(const std::string& text);

void write_split_report(std::ostream& out, const graph::Program& program, const graph::CutProgram& cut);
Json split_json(const std::string& file, const graph::Program& program, const graph::CutProgram& cut);

/// Costs for the simulator and the planner. Times are estimated operations; an I and a W each cost as much as the F.
/// Memory is in bytes.
Costs costs_of(const graph::Program& program, const graph::CutProgram& cut, const OptimizerState& optimizer);

}  // namespace stagecraft::cli
