// A stage's gradients are complete after its last weight part. Reducing them at once frees their memory and overlaps
// with the rank's remaining compute.

#include "rewrite.h"

namespace stagecraft {
namespace {

/// The REDUCE_GRADs to insert: one where the gradients of each stage of the rank are complete, in order of the row.
std::vector<detail::Insertion> completions(const Row& row, const Placement& placement, RankId rank, int microbatches) {
  std::vector<detail::Insertion> found;
  std::vector<int> weight_parts(placement.stages_of(rank).size(), 0);
  for (const Action& action : row) {
    for_each_part(action, [&](const Action& part) {
      if (!gives_weight_gradient(part.kind())) return;
      if (++weight_parts[static_cast<std::size_t>(placement.local_index(part.stage()))] != microbatches) return;
      found.push_back({static_cast<std::size_t>(&action - row.data()) + 1,
                       Action::of_stage(ActionKind::kReduceGrad, part.stage())});
    });
  }
  return found;
}

void reduce(Schedule& schedule) {
  detail::for_each_rank(schedule, [&](std::size_t r) {
    Row& row = schedule.rows[r];
    std::erase_if(row, [](const Action& action) { return action.is_idle(); });
    detail::insert_all(row, completions(row, schedule.placement, RankId(r), schedule.microbatches));
  });
}

}  // namespace

extern const detail::Rewrite detail::reduce_grad_rewrite = {
    .pass = {.name = "reduce_grad", .summary = "REDUCE_GRAD after the last weight part of a stage"},
    .refuses = kind_bit(ActionKind::kReduceGrad),
    .remedy = "the schedule has REDUCE_GRAD already: run this pass once",
    .apply = reduce};

void reduce_grad(Schedule& schedule) { detail::run(detail::reduce_grad_rewrite, schedule); }

}  // namespace stagecraft
