#pragma once

#include <string>

namespace stagecraft {

/// The host as it is running now: the same text for all its processes, also in containers, and another after a restart.
std::string running_host();

}  // namespace stagecraft
