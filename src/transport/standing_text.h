#pragma once

#include <string>

#include "waiting.h"

/// A Standing, which a rank sends when another asks what it waits for, as the text of a notice.
namespace stagecraft {

std::string encode(const Standing& standing);
Standing decode_standing(const std::string& text);

}  // namespace stagecraft
