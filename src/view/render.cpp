#include "stagecraft/view/render.h"

#include <ostream>
#include <string>

#include "escape.h"
#include "stagecraft/core/error.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/sim/step_simulator.h"

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

namespace {

std::string placement_array(const Placement& placement) {
  std::string text = "[";
  for (int stage = 0; stage < placement.stages(); ++stage) {
    if (stage > 0) text += ',';
    text += std::to_string(placement.rank_of(StageId(stage)).value);
  }
  return text + ']';
}

void append_row(std::string& out, const Row& row) {
  out += '[';
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (i > 0) out += ',';
    if (row[i].is_idle()) {
      out += "null";
      continue;
    }
    out += '"';
    append_text(out, row[i]);  // needs no escape: letters, digits, '_', '(', ';', ')'
    out += '"';
  }
  out += ']';
}

}  // namespace

void write_json(std::ostream& out, const Schedule& schedule) {
  out << "{\"name\":\"" << detail::json_escaped(schedule.name) << "\",\n\"ranks\":" << schedule.ranks()
      << ",\n\"stages\":" << schedule.stages() << ",\n\"microbatches\":" << schedule.microbatches
      << ",\n\"placement\":" << placement_array(schedule.placement) << ",\n\"rows\":[";
  std::string line;
  for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    line = rank > 0 ? ",\n" : "\n";
    append_row(line, schedule.rows[rank]);
    out << line;
  }
  out << "]}\n";
}

}  // namespace stagecraft
