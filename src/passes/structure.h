#pragma once

#include <optional>

#include "stagecraft/passes/verify.h"

namespace stagecraft::detail {

/// Everything that can be said rank by rank: each action exactly once, on its rank, after what it needs on that rank.
/// The schedule has passed check_extent.
/// `communicates`: whether the schedule has SENDs and RECVs, so that every result from another rank must have been
/// received.
std::optional<Refusal> check_structure(const Schedule& schedule, bool communicates);

}  // namespace stagecraft::detail
