#pragma once

#include "stagecraft/sim/simulator.h"

namespace stagecraft {

struct ExactResult {
  Schedule schedule;
  Simulation simulation;
  /// Whether the span is proven optimal. If not, either the time ran out and this is the best schedule found, or the
  /// simulated span is longer than the optimum of the integer program, which does not model messages that share a link
  /// or hold up their sender, or the costs have more than activations.
  bool proven = false;
};

/// Throws InvalidArgument when the case is too large for `solve_exactly`. Takes little time and memory for any size.
void check_exact_size(const Placement& placement, int microbatches);

/// Minimises the span by a mixed-integer program, which the COIN-OR CBC solver (command `cbc`) solves within `seconds`.
/// For small cases only: about 4 ranks and 6 microbatches. `known_span` is the span of any known feasible schedule; it
/// bounds the search. `memory_limit` 0 means no limit. Throws InvalidArgument when `cbc` is not installed, when the
/// case is too large, or when no schedule was found in time.
ExactResult solve_exactly(const Costs& costs, const Placement& placement, int microbatches, double memory_limit,
                          double known_span, double seconds);

}  // namespace stagecraft
