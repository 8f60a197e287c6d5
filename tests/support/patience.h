#pragma once

#include "stagecraft/transport/message.h"

namespace stagecraft {

/// The timeout for ranks that are expected to arrive, on a machine that may be busy for a minute.
inline constexpr Timeout kPatience = std::chrono::minutes(3);

}  // namespace stagecraft
