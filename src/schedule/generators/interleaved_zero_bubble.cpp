// Interleaved zero bubble: Interleaved1F1B with the backward split. Rank r defers r weight parts, which fill the end; a
// shorter warm-up is enough because input parts return sooner.
//
//   p = 2, v = 2, m = 2:
//   rank 0 | 0F0 0F1 2F0     2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1
//   rank 1 |     1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1
//
// Bubble: (p - 1)(F + I - W), F, I and W of one stage.
// Memory: min(vm, (v - 1) q + p) at most, q as in Interleaved1F1B: warm-up forwards plus r deferred weight parts.

#include "rows.h"
#include "stagecraft/core/error.h"
#include "stagecraft/schedule/dataflow.h"

namespace stagecraft::generator {
namespace {

Row make_row(const Shape& shape, int r, std::span<const StageId> stages) {
  const int p = shape.ranks;
  const int v = shape.stages_per_rank;
  detail::InterleavedOrder forwards(p, v, shape.microbatches, /*from_last_stage=*/false);
  detail::InterleavedOrder inputs(p, v, shape.microbatches, /*from_last_stage=*/true);
  detail::InterleavedOrder weights = inputs;  // the oldest I without its W comes first
  const int total = v * shape.microbatches;
  const int warm_up = std::min((v - 1) * forwards.first_round() + (p - 1 - r), total);

  Row row(static_cast<std::size_t>(r));
  row.reserve(3 * static_cast<std::size_t>(total) + 2 * static_cast<std::size_t>(p));
  const auto push = [&](ActionKind kind, detail::InterleavedOrder& order) {
    const auto at = order.next();
    row.emplace_back(kind, stages[static_cast<std::size_t>(at.local_stage)], at.microbatch);
  };

  for (int k = 0; k < warm_up; ++k) push(ActionKind::kForward, forwards);
  if (warm_up > 0) row.insert(row.end(), static_cast<std::size_t>(p - r - 1), Action::idle());
  for (int k = warm_up; k < total + warm_up; ++k) {
    if (k < total) push(ActionKind::kForward, forwards);
    push(ActionKind::kBackwardInput, inputs);
    if (k - warm_up >= r) push(ActionKind::kBackwardWeight, weights);
  }
  for (int owed = std::min(r, total); owed > 0; --owed) push(ActionKind::kBackwardWeight, weights);
  return row;
}

/// Puts the rows on one clock, a slot per tick: inserts idle slots so that the forward that a forward needs is in an
/// earlier slot. Other actions are not delayed.
void delay_forwards(Schedule& schedule) {
  constexpr int kNotYet = INT32_MAX;
  StageMicrobatchTable<int> forward_slot(schedule, kNotYet);
  std::vector<Row> delayed(schedule.rows.size());
  for (std::size_t r = 0; r < delayed.size(); ++r) delayed[r].reserve(schedule.rows[r].size() + delayed.size());
  Dataflow flow(schedule);
  flow.run([&](std::size_t rank, const Action& action) {
    Row& row = delayed[rank];
    if (action.kind() == ActionKind::kForward) {
      if (action.stage() > StageId(0)) {
        const int needed = forward_slot(action.stage() - 1, action.microbatch());
        if (needed == kNotYet) return false;
        row.resize(std::max(row.size(), static_cast<std::size_t>(needed) + 1));
      }
      forward_slot(action.stage(), action.microbatch()) = static_cast<int>(row.size());
      const StageId next = action.stage() + 1;
      if (schedule.placement.contains(next)) flow.wake(schedule.placement.rank_of(next).index());
    }
    row.push_back(action);
    return true;
  });
  if (flow.first_blocked() >= 0) throw InternalError("InterleavedZeroBubble: the generated order cannot execute");
  schedule.rows = std::move(delayed);
}

Schedule make(const Shape& shape) {
  Schedule schedule =
      detail::by_rank(shape, Placement::loop(shape.ranks, shape.stages_per_rank),
                      [&](int r, std::span<const StageId> stages) { return make_row(shape, r, stages); });
  delay_forwards(schedule);
  return schedule;
}

}  // namespace

extern const Generator interleaved_zero_bubble = {.name = "InterleavedZeroBubble",
                                                  .placement = "loop",
                                                  .min_stages_per_rank = 1,
                                                  .max_stages_per_rank = kMaxStage,
                                                  .default_stages_per_rank = 2,
                                                  .takes_memory_limit = false,
                                                  .bubble = "(p-1)(F+I-W)",
                                                  .memory = "min(vm, (v-1)q+p)",
                                                  .summary = "Interleaved1F1B with split backward",
                                                  .make = make};

}  // namespace stagecraft::generator
