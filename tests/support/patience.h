#pragma once

#include "stagecraft/transport/message.h"

namespace stagecraft {

/// The timeout of ranks that are expected to come, on a machine that may be busy with other things for a minute.
inline constexpr Timeout kPatience = std::chrono::minutes(3);

}  // namespace stagecraft
