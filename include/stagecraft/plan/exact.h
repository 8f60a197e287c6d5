#pragma once

#include "stagecraft/sim/simulator.h"

namespace stagecraft {

struct ExactResult {
  Schedule schedule;
  Simulation simulation;
  /// Whether the span is proven optimal. If not, either the time ran out and this is the best schedule found, or
  /// messages share links, which the integer program does not model, and the real span is longer than its optimum.
  bool proven = false;
};

/// Throws InvalidArgument when the case is too large for `solve_exactly`, in little time and memory whatever the size.
void check_exact_size(const Placement& placement, int microbatches);

/// The smallest span, by a mixed-integer program that the COIN-OR CBC solver (the program `cbc`) works on for at most
/// `seconds`. For small cases only: about 4 ranks and 6 microbatches. `known_span` is that of any schedule that is
/// known to be possible. `memory_limit` 0 means none. Throws InvalidArgument when there is no `cbc`, when the case is
/// too large, or when no schedule was found in time.
ExactResult solve_exactly(const Costs& costs, const Placement& placement, int microbatches, double memory_limit,
                          double known_span, double seconds);

}  // namespace stagecraft
