// A stage's gradients are complete after its last weight part. Reducing them at once frees their memory and overlaps
// with what the rank still computes.

#include "stagecraft/passes/pass.h"
#include "well_formed.h"

namespace stagecraft {

void reduce_grad(Schedule& schedule) {
  detail::require_well_formed(
      schedule, "reduce_grad", [](ActionKind k) { return k == ActionKind::kReduceGrad; },
      "the schedule has REDUCE_GRAD already: run this pass once");
  std::vector<int> weight_parts(static_cast<std::size_t>(schedule.stages()), 0);
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    Row reduced;
    reduced.reserve(schedule.rows[r].size() + schedule.placement.stages_of(RankId(r)).size());
    for (const Action& action : schedule.rows[r]) {
      if (action.is_idle()) continue;
      reduced.push_back(action);
      for_each_part(action, [&](const Action& part) {
        if (!gives_weight_gradient(part.kind())) return;
        if (++weight_parts[part.stage().index()] == schedule.microbatches) {
          reduced.push_back(Action::of_stage(ActionKind::kReduceGrad, part.stage()));
        }
      });
    }
    schedule.rows[r] = std::move(reduced);
  }
}

}  // namespace stagecraft
