#pragma once

#include "stagecraft/plan/planner.h"

namespace stagecraft::detail {

/// The placements a request allows. Throws InvalidArgument where there is none.
std::vector<Placement> placements_of(const PlanRequest& request);

}  // namespace stagecraft::detail
