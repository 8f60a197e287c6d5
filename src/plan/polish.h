#pragma once

#include <functional>

#include "dispatch.h"

namespace stagecraft::detail {

/// Simulated annealing on a finished schedule: a move shifts a single part within its row. Unlike the dispatcher, it
/// can reach every order, so small cases end close to the optimum. The rows must be executable and within the memory
/// limit; so is the result, which is never worse. Ends early at the lower bound, or when `cancelled`, called between
/// trials.
Outcome polish(const Problem& problem, std::vector<StepRow>& rows, std::uint64_t seed, std::int64_t trials,
               double lower_bound, const std::function<bool()>& cancelled);

}  // namespace stagecraft::detail
