#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// The step in which each action runs when every action takes one step. `step_of[rank][i]` is the step of slot i of
/// that rank, -1 for an idle slot.
struct StepTimes {
  int steps = 0;
  std::vector<std::vector<std::int32_t>> step_of;
};

/// In each step, each rank runs its next action if its inputs are ready, else it idles; idle slots of the schedule are
/// dropped first. A RECV needs its SEND and a SEND its compute, possibly in the same step (this is PyTorch's rule and
/// gives the same step counts). In a compute-only schedule an action needs the result of another rank from an *earlier*
/// step, which shows the bubble. Throws ScheduleError when no rank can go on.
StepTimes simulate_steps(const Schedule& schedule);

/// The number of steps of `simulate_steps`.
int count_steps(const Schedule& schedule);

/// Whether the slots are a timetable already: every input of an action is computed in an earlier slot. False for
/// lowered or invalid schedules.
bool is_timetable(const Schedule& schedule);

/// The schedule with each action in the slot of its step, and idle slots in the gaps.
Schedule spread_over_steps(const Schedule& schedule, const StepTimes& times);

}  // namespace stagecraft
