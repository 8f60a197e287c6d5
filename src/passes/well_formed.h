#pragma once

#include <optional>
#include <string_view>

#include "stagecraft/passes/verify.h"

namespace stagecraft::detail {

/// What every pass and proof relies on before it indexes anything: every action names a stage and microbatch that
/// exist, on the stage's own rank; messages go between neighbour stages on different ranks; no rank is empty; and there
/// are as many forwards as stages times microbatches, so that a table over both is no larger than the schedule itself.
std::optional<Refusal> check_well_formed(const Schedule& schedule);

/// The same for a pass: throws ScheduleError.
void require_well_formed(const Schedule& schedule, std::string_view pass);

/// For a pass: throws ScheduleError at the first action of a kind for which `refused` holds.
void require_none(const Schedule& schedule, std::string_view pass, bool (*refused)(ActionKind),
                  std::string_view remedy);

}  // namespace stagecraft::detail
