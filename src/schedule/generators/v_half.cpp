// V-Half (Qi et al., Pipeline Parallelism with Controllable Memory): half of 1F1B's memory for about half of its
// bubble. Forwards go down the ranks one tick per hop and up two ticks per hop, and so do input parts; weight parts
// fill the gaps.
//
//   p = 3, m = 3 (0F0 is stage 0, microbatch 0; stages 0 and 5 are on rank 0):
//   rank 0 | 0F0 0F1             5F0 5I0 0F2 5W0 5F1 5I1 5W1 0I0 0W0     5F2 5I2 0I1 5W2 0W1 ...
//   rank 1 |     1F0         4F0 1F1     4I0 4F1 4W0 1F2 1I0 4I1 1W0 4F2 4W1 1I1 4I2 1W1 4W2 ...
//   rank 2 |         2F0 3F0         2F1 3F1 3I0 2I0 3W0 2F2 2W0 3F2 3I1 2I1 3W1 2W1 3I2 2I2 ...
//
// Bubble: 3p - 3 half-rank ticks at F = I = W = 1 (3p - 4 for odd p); a schedule in this memory needs at least 3p - 7.
// Memory: 2 floor(p / 2) + 2 half-rank activations, 1F1B has 2p.

#include "rows.h"

namespace stagecraft::generator {
namespace {

Schedule make(const Shape& shape) {
  const bool odd = shape.ranks % 2 == 1;
  const detail::VBlock block{.hop = {1, 2, 1, 2}, .turn = {0, odd ? 0 : 3, 1}, .backward = ActionKind::kBackwardInput};
  Schedule schedule = detail::unroll(block, shape.ranks, shape.microbatches);
  detail::line_up_with_weights(schedule, 2 * (shape.ranks / 2) + 2);
  return schedule;
}

}  // namespace

extern const Generator v_half = {.name = "V-Half",
                                 .placement = "v",
                                 .min_stages_per_rank = 2,
                                 .max_stages_per_rank = 2,
                                 .default_stages_per_rank = 2,
                                 .takes_memory_limit = false,
                                 .bubble = "3p-3 (3p-4, p odd) at F = I = W = 1",
                                 .memory = "min(2m, 2 floor(p/2)+2)",
                                 .summary = "half of 1F1B's memory for about half of its bubble",
                                 .make = make};

}  // namespace stagecraft::generator
