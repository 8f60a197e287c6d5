#pragma once

#include <cstring>
#include <string>
#include <type_traits>

#include "stagecraft/schedule/timeline.h"
#include "stagecraft/transport/transport.h"

/// A timeline as a message between ranks. Copies bytes: both ranks must run the same program.
namespace stagecraft {

inline Message to_message(const Timeline& timeline) {
  static_assert(std::is_trivially_copyable_v<Span>);
  std::string bytes(timeline.size() * sizeof(Span), '\0');
  if (!timeline.empty()) std::memcpy(bytes.data(), timeline.data(), bytes.size());
  return {{}, std::move(bytes)};
}

inline Timeline to_timeline(const Message& message) {
  Timeline timeline(message.header.size() / sizeof(Span));
  if (!timeline.empty()) std::memcpy(timeline.data(), message.header.data(), timeline.size() * sizeof(Span));
  return timeline;
}

}  // namespace stagecraft
