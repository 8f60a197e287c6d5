#pragma once

#include <c10/core/Stream.h>

#include <utility>

#include "stagecraft/transport/streams.h"

namespace stagecraft {

/// While it lives, work may be issued to a second stream beside the rank's own. The second one begins after what was
/// issued to the rank's own so far, which waits for it at the end:
///
///     own     ──┬── F1 ──┬──
///     second    └── B0 ──┘
///
/// So outside of forks the two streams are in order, and memory of either may be used on both. Within a fork, what one
/// side reads must not be freed if the other's stream has allocated it: that one would take it again at once.
class Fork {
 public:
  explicit Fork(const c10::Stream& second) : own_(current_stream(second.device())), second_(second) {
    run_after(second_, own_);
  }
  ~Fork() {
    if (is_joined_) return;
    try {
      join();
    } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): something has failed already
    }
  }
  Fork(const Fork&) = delete;
  Fork& operator=(const Fork&) = delete;

  /// Makes one of the streams current.
  void enter(bool second) const { set_current_stream(second ? second_ : own_); }
  /// What is issued to one of them from now on comes after what the other has been given so far.
  void order(bool second_is_later) const {
    run_after(second_is_later ? second_ : own_, second_is_later ? own_ : second_);
  }
  void join() {
    is_joined_ = true;
    set_current_stream(own_);
    run_after(own_, second_);
  }

 private:
  c10::Stream own_;
  c10::Stream second_;
  bool is_joined_ = false;
};

}  // namespace stagecraft
