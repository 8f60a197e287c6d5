#pragma once

#include <vector>

#include "stagecraft/sim/simulator.h"

namespace stagecraft {

/// One action of the critical path.
struct CriticalAction {
  RankId rank = {};
  int slot = 0;
  Action action = {};
  double start = 0;
  double end = 0;
  /// Whether it waited for a message of the action before it in the path, which is on another rank; else that one is
  /// the action before it on its own rank.
  bool after_message = false;
};

/// The chain of actions, each starting as soon as the one before lets it, that ends with the last compute of all:
/// making anything else faster does not shorten the step. Needs a simulation with times kept.
std::vector<CriticalAction> critical_path(const Schedule& schedule, const Simulation& simulation);

struct CriticalSummary {
  double compute = 0;
  double messages = 0;          ///< From the end of a giver to the start of its taker.
  std::vector<double> by_rank;  ///< Compute on the path.
};
CriticalSummary summarize(const std::vector<CriticalAction>& path, int ranks);

}  // namespace stagecraft
