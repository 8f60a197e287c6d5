// Interleaved 1F1B (Narayanan et al., Megatron-LM): several stages per rank, in a loop; a 1F1B over all of them.
//
//   p = 2, v = 2, m = 2:
//   rank 0 | 0F0 0F1 2F0 2F1             2B0     2B1     0B0     0B1
//   rank 1 |     1F0 1F1     3F0 3B0 3F1 3B1     1B0     1B1
//
// Bubble: (p - 1)(F + B), F and B of one stage: 1F1B's divided by v.
// Memory: min(vm, (v - 1) q + 2(p - 1 - r) + 1) on rank r, q = microbatches per round (p when p divides m).

#include "rows.h"

namespace stagecraft::generator {
namespace {

Row make_row(const Shape& shape, int r, std::span<const StageId> stages) {
  const int p = shape.ranks;
  const int v = shape.stages_per_rank;
  detail::InterleavedOrder forwards(p, v, shape.microbatches, /*from_last_stage=*/false);
  detail::InterleavedOrder backwards(p, v, shape.microbatches, /*from_last_stage=*/true);
  const int total = v * shape.microbatches;
  const int warm_up = std::min((v - 1) * forwards.first_round() + 2 * (p - 1 - r), total);

  Row row(static_cast<std::size_t>(r));
  // The first backward reaches this rank at slot v p + 2(p - 1 - r).
  const int wait = warm_up > 0 ? std::max(0, v * p + 2 * (p - 1 - r) - (warm_up + r)) : 0;
  row.reserve(static_cast<std::size_t>(r + wait + warm_up + 2 * total));
  const auto push_forward = [&] {
    const auto at = forwards.next();
    row.push_back(Action::forward(stages[static_cast<std::size_t>(at.local_stage)], at.microbatch));
  };
  const auto push_backward = [&] {
    const auto at = backwards.next();
    row.push_back(Action::backward(stages[static_cast<std::size_t>(at.local_stage)], at.microbatch));
  };

  for (int k = 0; k < warm_up; ++k) push_forward();
  row.insert(row.end(), static_cast<std::size_t>(wait), Action::idle());
  for (int k = warm_up; k < total; ++k) {
    push_forward();
    push_backward();
  }
  for (int k = 0; k < warm_up; ++k) {
    row.push_back(Action::idle());
    push_backward();
  }
  return row;
}

Schedule make(const Shape& shape) {
  return detail::by_rank(shape, Placement::loop(shape.ranks, shape.stages_per_rank),
                         [&](int r, std::span<const StageId> stages) { return make_row(shape, r, stages); });
}

}  // namespace

extern const Generator interleaved_1f1b = {.name = "Interleaved1F1B",
                                           .placement = "loop",
                                           .min_stages_per_rank = 1,
                                           .max_stages_per_rank = kMaxStage,
                                           .default_stages_per_rank = 2,
                                           .takes_memory_limit = false,
                                           .bubble = "(p-1)(F+B)",
                                           .memory = "min(vm, (v-1)q+2(p-1-r)+1)",
                                           .summary = "1F1B over v stages per rank: 1/v of the bubble, more messages",
                                           .make = make};

}  // namespace stagecraft::generator
