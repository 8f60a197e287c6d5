#include <algorithm>

#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/dataflow.h"
#include "stagecraft/sim/step_simulator.h"

namespace stagecraft {
namespace {

/// The slots of F and of B or I, per (stage, microbatch).
struct Slots {
  std::int32_t forward = 0;
  std::int32_t backward = 0;
};

StageMicrobatchTable<Slots> slots_of(const Schedule& schedule) {
  StageMicrobatchTable<Slots> slots(schedule);
  for (const Row& row : schedule.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      for_each_part(row[i], [&](const Action& part) {
        if (part.kind() == ActionKind::kForward) slots(part.stage(), part.microbatch()).forward = static_cast<int>(i);
        if (gives_input_gradient(part.kind())) slots(part.stage(), part.microbatch()).backward = static_cast<int>(i);
      });
    }
  }
  return slots;
}

}  // namespace

bool is_timetable(const Schedule& schedule) {
  // The rows of a lowered schedule have different numbers of messages, so their slots are not a common clock.
  if (schedule.is_lowered() || !verify(schedule).ok()) return false;
  const auto slots = slots_of(schedule);
  for (int s = 0; s + 1 < schedule.stages(); ++s) {
    for (int m = 0; m < schedule.microbatches; ++m) {
      const Slots before = slots(StageId(s), MicrobatchId(m));
      const Slots after = slots(StageId(s + 1), MicrobatchId(m));
      if (before.forward >= after.forward) return false;
      const bool trains = before.backward > 0;  // slot 0 can hold no backward
      if (trains && after.backward >= before.backward) return false;
    }
  }
  return true;
}

Schedule spread_over_steps(const Schedule& schedule, const StepTimes& times) {
  Schedule spread{schedule.name, schedule.placement, schedule.microbatches, {}};
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    Row& row = spread.rows.emplace_back();
    for (std::size_t i = 0; i < schedule.rows[r].size(); ++i) {
      const std::int32_t step = times.step_of[r][i];
      if (step < 0) continue;
      row.resize(static_cast<std::size_t>(step));
      row.push_back(schedule.rows[r][i]);
    }
  }
  return spread;
}

}  // namespace stagecraft
