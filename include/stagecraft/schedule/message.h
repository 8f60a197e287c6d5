#pragma once

#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/placement.h"

/// The messages that compute actions need and give. The rules are defined only here: activations flow to the next
/// stage, gradients to the previous one, and stages on the same rank exchange no messages.
namespace stagecraft {

/// The SEND on another rank that a plain compute action needs; idle when it needs no message.
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

/// The SEND that carries a plain compute action's result to another rank; idle when no other rank needs the result.
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
