#include "stagecraft/core/error.h"
#include "stagecraft/sim/step_simulator.h"
#include "stagecraft/view/render.h"

namespace stagecraft {
namespace {

/// Throws above kMaxSlots. If only one rank runs at a time, the number of steps is that of all actions, so the table
/// can be far larger than the rows.
void refuse_too_many_slots(int ranks, int steps) {
  if (std::int64_t{ranks} * steps <= kMaxSlots) return;
  throw InvalidArgument(std::to_string(ranks) + " ranks over " + std::to_string(steps) + " steps are more than " +
                        std::to_string(kMaxSlots) + " slots: draw a schedule with fewer microbatches");
}

}  // namespace

Schedule as_drawn(const Schedule& schedule) {
  if (is_timetable(schedule)) return schedule;
  StepTimes times;
  try {
    times = simulate_steps(schedule);
  } catch (const ScheduleError&) {
    return schedule;
  }
  refuse_too_many_slots(schedule.ranks(), times.steps);
  return spread_over_steps(schedule, times);
}

}  // namespace stagecraft
