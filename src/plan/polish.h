#pragma once

#include <functional>

#include "dispatch.h"

namespace stagecraft::detail {

/// Local search on a finished schedule: single parts move to other places of their row, what makes the span smaller
/// stays, and at first also a little of what does not. Unlike the dispatcher it can express every order, so small cases
/// end up close to the optimum. The rows must be executable and within the limit; so is the result, and it is never
/// worse. Ends early at the lower bound, or when `cancelled`, which is asked between trials.
Outcome polish(const Problem& problem, std::vector<StepRow>& rows, std::uint64_t seed, std::int64_t trials,
               double lower_bound, const std::function<bool()>& cancelled);

}  // namespace stagecraft::detail
