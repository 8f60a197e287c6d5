#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stagecraft/schedule/action.h"

/// Recorded times of the actions of a step.
namespace stagecraft {

/// One recorded action of one rank. Times are in seconds on a clock that all ranks of a machine share. `start` of a
/// forward or backward is before the wait for its input; `waited` is the length of that wait.
struct Span {
  Action action;
  double start = 0;
  double end = 0;
  double waited = 0;
  std::int64_t bytes = 0;  ///< Size of the message or of the gradients.
  /// True for what runs in a thread beside the rank's other actions: an average of gradients, a gathering of
  /// parameters. The `start` of an average is the time when all replicas have arrived; `waited` is how long the rank
  /// was idle for it.
  bool beside = false;
  bool replayed = false;  ///< Part of a step that was replayed as a graph.
};

/// The actions of one rank in the order of execution.
using Timeline = std::vector<Span>;

/// What an action adds to the time of its rank, in seconds. Actions may run side by side, as the halves of an overlap
/// do on a GPU: that time counts once, for the one that began to work first.
struct OwnTime {
  double waited = 0;  ///< While no other action worked.
  double worked = 0;
};
/// In the order of the timeline. Nothing for actions beside.
std::vector<OwnTime> own_times(const Timeline& timeline);

/// The timelines of one step, indexed by rank.
using StepTimelines = std::vector<Timeline>;

/// Consecutive steps of one run, all with the same ranks and stages.
struct Recording {
  std::string name;  ///< Name of the schedule.
  std::vector<StepTimelines> steps;
};

}  // namespace stagecraft
