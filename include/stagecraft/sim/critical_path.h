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
  double waited = 0;  ///< Before `start`, for the parameters of its stage.
  /// True when the previous action of the path is on another rank and sent the message that this action waited for;
  /// false when it is the previous compute on the same rank.
  bool after_message = false;
};

/// The critical path: the chain of computes that ends with the last compute of all ranks, in which each one starts as
/// soon as the previous one allows. Speeding up other actions does not shorten the step. Throws InvalidArgument unless
/// the simulation was run with `keep_times`.
std::vector<CriticalAction> critical_path(const Schedule& schedule, const Simulation& simulation);

struct CriticalSummary {
  double compute = 0;
  double messages = 0;          ///< Time from the end of a sender to the start of its receiver.
  double parameters = 0;        ///< Waits for an UNSHARD.
  std::vector<double> by_rank;  ///< Compute time on the path.
};
CriticalSummary summarize(const std::vector<CriticalAction>& path, int ranks);

}  // namespace stagecraft
