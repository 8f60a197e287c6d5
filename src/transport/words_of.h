#pragma once

#include <exception>
#include <string>

namespace stagecraft {

/// The first line of what an error says: LibTorch's and NCCL's go on with where they come from.
std::string words_of(const std::exception& error);

}  // namespace stagecraft
