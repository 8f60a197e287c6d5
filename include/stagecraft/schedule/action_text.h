#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "stagecraft/schedule/action.h"

/// The text form of actions, as `torch.distributed.pipelining` reads and writes it: `2F0`, `3SEND_F1`, `0UNSHARD`,
/// `(0F5;7B2)OVERLAP_F_B`; an idle slot is an empty text.
namespace stagecraft {

/// "F", "SEND_F", "OVERLAP_F_B", ...; empty for idle.
std::string_view kind_text(ActionKind kind);

void append_text(std::string& out, const Action& action);
std::string to_text(const Action& action);

/// Why a text is not an action: the rule it breaks and the correct form. Points to static storage.
struct ActionTextError {
  std::string_view rule;
};

/// Parses one cell. Ignores blanks around it; everything else must match (no trailing junk, no signs).
std::variant<Action, ActionTextError> parse_action(std::string_view text);

/// As `parse_action`, but throws InvalidArgument on an error.
Action to_action(std::string_view text);

}  // namespace stagecraft
