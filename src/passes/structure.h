#pragma once

#include <optional>

#include "stagecraft/passes/verify.h"

namespace stagecraft::detail {

/// Checks everything that can be checked rank by rank: each action occurs exactly once, on its rank, after what it
/// needs on that rank. The schedule must have passed check_extent. `communicates` says whether the schedule has SENDs
/// and RECVs, so that every input from another rank must have been received.
std::optional<Refusal> check_structure(const Schedule& schedule, bool communicates);

}  // namespace stagecraft::detail
