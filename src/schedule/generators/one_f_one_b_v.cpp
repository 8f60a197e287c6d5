// 1F1B-V (Qi et al., Pipeline Parallelism with Controllable Memory): two thirds of 1F1B's memory without splitting the
// backward. Forwards travel the V one tick per hop, backwards (two ticks long) three.
//
//   p = 2, m = 3:
//   rank 0 | 0F0         3F0 0F1 3B0     3F1 0F2 3B1     3F2 0B0 3B2 0B1     0B2
//   rank 1 |     1F0 2F0         1F1 2F1 2B0 1B0 1F2 2F2 2B1 1B1     2B2 1B2
//
// The waits at the turns depend on p mod 3, because the legs of neighbouring microbatches must not meet on one tick.
//
// Bubble: about 5.5 p half-rank ticks at F = 1, B = 2, where 1F1B has 6(p - 1).
// Memory: min(2m, floor(4p / 3) + 2) half-rank activations at most, 1F1B has 2p.

#include "rows.h"

namespace stagecraft::generator {
namespace {

Schedule make(const Shape& shape) {
  detail::VBlock block{.hop = {1, 1, 3, 3}, .turn = {0, 0, 1}, .backward = ActionKind::kBackward};
  if (shape.ranks % 3 == 0) block.turn[0] = 2;
  if (shape.ranks % 3 == 2) block.turn[1] = 2;
  Schedule schedule = detail::unroll(block, shape.ranks, shape.microbatches);
  detail::line_up(schedule);
  return schedule;
}

}  // namespace

extern const Generator one_f_one_b_v = {.name = "1F1B-V",
                                        .placement = "v",
                                        .min_stages_per_rank = 2,
                                        .max_stages_per_rank = 2,
                                        .default_stages_per_rank = 2,
                                        .takes_memory_limit = false,
                                        .bubble = "about 5.5p at F = 1, B = 2",
                                        .memory = "min(2m, floor(4p/3)+2)",
                                        .summary = "two thirds of 1F1B's memory, backward not split",
                                        .make = make};

}  // namespace stagecraft::generator
