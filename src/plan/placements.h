#pragma once

#include "stagecraft/plan/planner.h"

namespace stagecraft::detail {

/// The placements that a request allows. Throws InvalidArgument when there is none or the request is too large.
std::vector<Placement> placements_of(const PlanRequest& request);

}  // namespace stagecraft::detail
