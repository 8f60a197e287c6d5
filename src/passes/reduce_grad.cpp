// A stage's gradients are complete after its last weight part. Reducing them at once frees their memory and overlaps
// with what the rank still computes.

#include <algorithm>

#include "rewrite.h"

namespace stagecraft {
namespace {

struct Insertion {
  std::size_t at;  // before which action of the row
  Action action;
};

/// Where the gradients of a rank's stages are complete, in the order of the row.
std::vector<Insertion> completions(const Row& row, const Placement& placement, RankId rank, int microbatches) {
  std::vector<Insertion> found;
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

/// Opens the gaps from the back, so that every action moves once and those before the first gap not at all.
void insert_all(Row& row, const std::vector<Insertion>& insertions) {
  const auto at = [&](std::size_t i) { return row.begin() + static_cast<std::ptrdiff_t>(i); };
  std::size_t end = row.size();
  row.resize(row.size() + insertions.size());
  for (std::size_t left = insertions.size(); left > 0; --left) {
    const Insertion& last = insertions[left - 1];
    std::move_backward(at(last.at), at(end), at(end + left));
    row[last.at + left - 1] = last.action;
    end = last.at;
  }
}

void reduce(Schedule& schedule) {
  detail::for_each_rank(schedule, [&](std::size_t r) {
    Row& row = schedule.rows[r];
    std::erase_if(row, [](const Action& action) { return action.is_idle(); });
    insert_all(row, completions(row, schedule.placement, RankId(r), schedule.microbatches));
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
