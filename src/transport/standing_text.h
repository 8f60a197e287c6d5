#pragma once

#include <string>

#include "waiting.h"

/// What a rank says when another asks why it does not send, as the text of a notice.
namespace stagecraft {

std::string encode(const Standing& standing);
Standing decode_standing(const std::string& text);

}  // namespace stagecraft
