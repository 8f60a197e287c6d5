#include "rows.h"

#include <array>

#include "stagecraft/schedule/generator.h"

namespace stagecraft::detail {

Schedule to_schedule(const Placement& placement, int microbatches, const std::vector<StepRow>& rows) {
  constexpr std::array kKinds = {ActionKind::kForward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight};
  Schedule schedule{"planned", placement, microbatches, {}};
  for (const StepRow& steps : rows) {
    Row& row = schedule.rows.emplace_back();
    row.reserve(steps.size());
    for (const Step& step : steps) {
      row.emplace_back(kKinds[static_cast<std::size_t>(step.part)], StageId(step.stage), MicrobatchId(step.microbatch));
    }
  }
  return schedule;
}

void for_each_known_schedule(const Placement& placement, int microbatches,
                             const std::function<bool(const Schedule&)>& visit) {
  const int v = placement.stages() / placement.ranks();
  for (const Generator* generator : generators()) {
    if (v < generator->min_stages_per_rank || v > generator->max_stages_per_rank) continue;
    if (generator->name == "ForwardOnly") continue;
    const Shape shape{.ranks = placement.ranks(), .stages_per_rank = v, .microbatches = microbatches};
    Schedule schedule = make_schedule(generator->name, shape);
    if (!(schedule.placement == placement)) continue;
    schedule.name = generator->name;
    if (!visit(schedule)) return;
  }
}

Schedule one_at_a_time(const Placement& placement, int microbatches) {
  std::vector<StepRow> rows(static_cast<std::size_t>(placement.ranks()));
  for (int j = 0; j < microbatches; ++j) {
    for (int s = 0; s < placement.stages(); ++s) {
      rows[placement.rank_of(StageId(s)).index()].push_back({s, j, Part::kForward});
    }
    for (int s = placement.stages(); s-- > 0;) {
      StepRow& row = rows[placement.rank_of(StageId(s)).index()];
      row.push_back({s, j, Part::kInput});
      row.push_back({s, j, Part::kWeight});
    }
  }
  return to_schedule(placement, microbatches, rows);
}

}  // namespace stagecraft::detail
