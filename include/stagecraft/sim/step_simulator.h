#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// When each action runs if every action takes one step. `step_of[rank][i]` is the step of the i-th slot of that rank,
/// -1 for an idle slot.
struct StepTimes {
  int steps = 0;
  std::vector<std::vector<std::int32_t>> step_of;
};

/// Per step each rank takes its next action if what it needs is done, else idles; idle slots of the schedule are
/// dropped first. A RECV needs its SEND and a SEND its compute, possibly in the same step (PyTorch's rule, and its step
/// counts). In a compute-only schedule an action needs its neighbour stage's in an *earlier* step, which shows the
/// bubble. Throws ScheduleError when no rank can go on.
StepTimes simulate_steps(const Schedule& schedule);

/// Just the number of steps, without the table.
int count_steps(const Schedule& schedule);

/// Whether the rows, read as they stand, already are a timetable: everything an action needs stands in an earlier slot.
bool is_timetable(const Schedule& schedule);

/// The same schedule with its slots where `times` puts them: idle slots fill the gaps.
Schedule spread_over_steps(const Schedule& schedule, const StepTimes& times);

}  // namespace stagecraft
