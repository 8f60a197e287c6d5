#pragma once

#include <iosfwd>

#include "stagecraft/plan/planner.h"

namespace stagecraft::cli {

/// What the planner found, beside every known schedule and the lower bound.
void write_plan_report(std::ostream& out, const PlanRequest& request, const PlanResult& result);
void write_json_plan_report(std::ostream& out, const PlanRequest& request, const PlanResult& result);

}  // namespace stagecraft::cli
