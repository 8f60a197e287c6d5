#pragma once

#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/placement.h"

/// Which messages compute actions need and give: the one place that knows that activations flow to the next stage,
/// gradients to the one before, and that stages on one rank hand over without a message.
namespace stagecraft {

/// The SEND on another rank that a plain compute action needs; idle when it needs none.
inline Action message_needed(const Placement& placement, const Action& part) {
  const StageId s = part.stage();
  if (part.kind() == ActionKind::kForward && s.value > 0 && !placement.share_rank(s, s - 1)) {
    return {ActionKind::kSendForward, s - 1, part.microbatch()};
  }
  if (gives_input_gradient(part.kind()) && s.value + 1 < placement.stages() && !placement.share_rank(s, s + 1)) {
    return {ActionKind::kSendBackward, s + 1, part.microbatch()};
  }
  return {};
}

/// The SEND by which a plain compute action's result reaches another rank; idle when none needs it.
inline Action message_given(const Placement& placement, const Action& part) {
  const StageId s = part.stage();
  if (part.kind() == ActionKind::kForward && s.value + 1 < placement.stages() && !placement.share_rank(s, s + 1)) {
    return {ActionKind::kSendForward, s, part.microbatch()};
  }
  if (gives_input_gradient(part.kind()) && s.value > 0 && !placement.share_rank(s, s - 1)) {
    return {ActionKind::kSendBackward, s, part.microbatch()};
  }
  return {};
}

}  // namespace stagecraft
