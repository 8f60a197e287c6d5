// ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism): 1F1B with the backward split. Rank r defers r weight parts to
// the end, where 1F1B would wait.
//
//   rank 0 | F0 F1 F2       I0 W0 F3 I1 W1 I2 W2 I3 W3
//   rank 1 |    F0 F1    I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
//   rank 2 |       F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
//
// Bubble: (p - 1)(F + I - W).  Memory: min(m, p) on every rank, 1F1B's largest.

#include "rows.h"

namespace stagecraft::generator {
namespace {

Schedule make(const Shape& shape) {
  const auto make_row = [&](int r, std::span<const StageId> stages) {
    const int warm_up = std::min(shape.microbatches, shape.ranks - 1 - r);
    return detail::with_deferred_weights(stages[0], warm_up, /*delay=*/r, shape.microbatches);
  };
  Schedule schedule = detail::by_rank(shape, Placement::linear(shape.ranks), make_row);
  detail::line_up(schedule);
  return schedule;
}

}  // namespace

extern const Generator zb_h1 = {.name = "ZB-H1",
                                .placement = "linear",
                                .min_stages_per_rank = 1,
                                .max_stages_per_rank = 1,
                                .default_stages_per_rank = 1,
                                .takes_memory_limit = false,
                                .bubble = "(p-1)(F+I-W)",
                                .memory = "min(m, p)",
                                .summary = "1F1B with split backward: a third of the bubble in the same memory",
                                .make = make};

}  // namespace stagecraft::generator
