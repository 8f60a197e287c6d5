#pragma once

#include <iosfwd>

#include "report_text.h"
#include "stagecraft/plan/partition.h"

/// Reports on a plan, with the lower bound and every known schedule. `cuts` is empty unless layers were cut.
namespace stagecraft::cli {

void write_plan_report(std::ostream& out, const PlanRequest& request, const PlanResult& result, const Cuts& cuts);
Json plan_json(const PlanRequest& request, const PlanResult& result, const Cuts& cuts);

}  // namespace stagecraft::cli
