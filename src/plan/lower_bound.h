#pragma once

#include "problem.h"

namespace stagecraft::detail {

/// No schedule with these costs, placement and memory limit has a smaller span (the largest of any rank).
double lower_bound(const Problem& problem);

}  // namespace stagecraft::detail
