#pragma once

#include "problem.h"

namespace stagecraft::detail {

/// A lower bound on the span (the largest of any rank) of all schedules with these costs, placement and memory limit.
double lower_bound(const Problem& problem);

}  // namespace stagecraft::detail
