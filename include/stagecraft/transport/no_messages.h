#pragma once

#include "stagecraft/transport/also_in_backwards.h"

namespace stagecraft {

/// While it lives, this thread may neither send nor receive, nor take part in a collective, and its backwards may not
/// either: such a call throws InvalidArgument with `why`, and changes nothing. For captures, which other ranks may not
/// be doing at the same time.
class NoMessages {
 public:
  explicit NoMessages(const char* why) : why_(why) {}

  /// Throws if there is one on this thread.
  static void check();

 private:
  AlsoInBackwards<const char, NoMessages> why_;
};

}  // namespace stagecraft
