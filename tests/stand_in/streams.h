#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <set>

namespace stagecraft::stand_in {

/// What must be over before something may begin: operations of the capture, by number.
using Frontier = std::set<std::size_t>;

/// Of this thread, on the CPU.
std::int64_t current_stream_id();
c10::Stream new_stream_of_cpu();

struct Event {
  Frontier after;
  double milliseconds = 0;  ///< When it was recorded last.

  void set_time();
};

/// The capture of this thread, as far as streams and events are concerned.
class StreamOrder {
 public:
  virtual ~StreamOrder() = default;
  virtual Frontier& frontier_of(std::int64_t stream) = 0;
};
/// Null outside of captures.
StreamOrder*& order_of_thread();

}  // namespace stagecraft::stand_in
