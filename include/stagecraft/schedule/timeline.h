#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stagecraft/schedule/action.h"

/// What happened in a step, and when.
namespace stagecraft {

/// One action of one rank, in seconds on a clock that all ranks of a machine share. A forward or backward begins with
/// the wait for its input, which `waited` gives apart.
struct Span {
  Action action;
  double start = 0;
  double end = 0;
  double waited = 0;
  std::int64_t bytes = 0;  ///< Size of the message or of the gradients.
  /// True for a gradient average, which runs in a thread beside the rank's other actions. It starts when all replicas
  /// have arrived; `waited` is then how long the rank was idle for it at the end of the step.
  bool beside = false;
};

/// The actions of one rank in the order of execution.
using Timeline = std::vector<Span>;

/// One step of all ranks, by rank.
using StepTimelines = std::vector<Timeline>;

/// Steps of one run, one after the other, all with the same ranks and stages.
struct Recording {
  std::string name;  ///< Of the schedule.
  std::vector<StepTimelines> steps;
};

}  // namespace stagecraft
