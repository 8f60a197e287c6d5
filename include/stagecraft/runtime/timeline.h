#pragma once

#include <string>
#include <vector>

#include "stagecraft/schedule/action.h"

/// What really happened in a step, and when.
namespace stagecraft {

/// One action of one rank. Seconds since the beginning of the step on that rank; a forward or backward includes the
/// wait for its input, which `waited` gives apart.
struct Span {
  Action action;
  double start = 0;
  double end = 0;
  double waited = 0;
  std::int64_t bytes = 0;  ///< Of a message.
};

using Timeline = std::vector<Span>;

}  // namespace stagecraft
