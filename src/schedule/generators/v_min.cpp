// V-Min (Qi et al., Pipeline Parallelism with Controllable Memory): a third of 1F1B's memory for two thirds of its
// bubble. A microbatch travels the V without ever waiting, one tick per hop.
//
//   p = 4, m = 2:
//   rank 0 | 0F0 0F1                     7F0 7I0 7W0             7F1 7I1 0I0 7W1 0W0 ...
//   rank 1 |     1F0                 6F0 1F1     6I0 6W0     6F1     1I0 6I1 1W0 6W1 ...
//   rank 2 |         2F0         5F0         2F1     5I0 5F1 5W0 2I0 2W0     5I1 5W1     2I1 ...
//   rank 3 |             3F0 4F0                 3F1 4F1 4I0 3I0 4W0 3W0         4I1 3I1 4W1 ...
//
// Where 3 divides p, the legs of neighbouring microbatches would meet on one tick: two turns wait 2 ticks more.
//
// Bubble: 4p - 5 half-rank ticks at F = I = W = 1 (p > 1).  Memory: 2 floor((p + 4) / 3) half-rank activations, 1F1B
// has 2p.

#include "rows.h"

namespace stagecraft::generator {
namespace {

Schedule make(const Shape& shape) {
  const int wait = shape.ranks % 3 == 0 ? 2 : 0;
  const detail::VBlock block{.hop = {1, 1, 1, 1}, .turn = {wait, 0, wait}, .backward = ActionKind::kBackwardInput};
  Schedule schedule = detail::unroll(block, shape.ranks, shape.microbatches);
  detail::line_up_with_weights(schedule, 2 * ((shape.ranks + 4) / 3));
  return schedule;
}

}  // namespace

extern const Generator v_min = {.name = "V-Min",
                                .placement = "v",
                                .min_stages_per_rank = 2,
                                .max_stages_per_rank = 2,
                                .default_stages_per_rank = 2,
                                .takes_memory_limit = false,
                                .bubble = "4p-5 at F = I = W = 1",
                                .memory = "min(2m, 2 floor((p+4)/3))",
                                .summary = "a third of 1F1B's memory for two thirds of its bubble",
                                .make = make};

}  // namespace stagecraft::generator
