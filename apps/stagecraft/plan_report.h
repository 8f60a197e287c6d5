#pragma once

#include <iosfwd>

#include "stagecraft/plan/partition.h"

namespace stagecraft::cli {

/// Reports on a plan, with the lower bound and every known schedule; `cuts` is empty unless layers were cut.
void write_plan_report(std::ostream& out, const PlanRequest& request, const PlanResult& result, const Cuts& cuts);
void write_json_plan_report(std::ostream& out, const PlanRequest& request, const PlanResult& result, const Cuts& cuts);

}  // namespace stagecraft::cli
