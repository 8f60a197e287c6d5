#pragma once

#include <string>

#include "waiting.h"

/// What a rank says when another asks why it does not send, as text for an envelope.
namespace stagecraft::mpi {

std::string encode(const Standing& standing);
Standing decode_standing(const std::string& text);

}  // namespace stagecraft::mpi
