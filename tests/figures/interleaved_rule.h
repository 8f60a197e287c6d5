#pragma once

#include <algorithm>

#include "stagecraft/schedule/dataflow.h"
#include "stagecraft/sim/costs.h"

namespace stagecraft::figures {

/// The bubble of a 1F1B-I schedule by the rule of the published cells: all but the first microbatch of a round pass
/// from the last rank back to the first (and, as gradients, from the first to the last) without waiting for the
/// message. No real rank could do so; the rule shows that our schedule and costs are the published ones, and that
/// nothing else differs.
inline double interleaved_by_rule(const Schedule& schedule, const Costs& costs) {
  const int p = schedule.placement.ranks();
  const ActionCosts action_costs(costs, schedule.placement);
  StageMicrobatchTable<double> forward_end(schedule, -1);
  StageMicrobatchTable<double> backward_end(schedule, -1);
  std::vector<double> now(schedule.rows.size());
  Dataflow flow(schedule);
  flow.run([&](std::size_t rank, const Action& action) {
    if (action.is_idle()) return true;
    const bool forward = action.kind() == ActionKind::kForward;
    const StageId s = action.stage();
    const bool first_of_round = action.microbatch().value % p == 0;
    const Action send = message_needed(schedule.placement, action);
    const bool wraps = forward ? s.value % p == 0 : s.value % p == p - 1;
    if (!send.is_idle() && (!wraps || first_of_round)) {
      const double given = (forward ? forward_end : backward_end)(send.stage(), action.microbatch());
      if (given < 0) return false;
      now[rank] = std::max(now[rank], given + costs.link.latency);
    }
    now[rank] += action_costs.of(action);
    (forward ? forward_end : backward_end)(s, action.microbatch()) = now[rank];
    const Action given = message_given(schedule.placement, action);
    if (!given.is_idle()) flow.wake(schedule.placement.rank_of(peer_stage(given)).index());
    return true;
  });
  const double work =
      schedule.microbatches * schedule.placement.stages() / p *
      (action_costs.of(ActionKind::kForward, StageId(0)) + action_costs.of(ActionKind::kBackward, StageId(0)));
  const double span = *std::max_element(now.begin(), now.end());  // rank 0 starts at 0 and ends last
  return (span - work) / span;
}

}  // namespace stagecraft::figures
