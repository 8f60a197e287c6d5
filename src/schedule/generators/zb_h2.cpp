// ZB-H2 (Qi et al., Zero Bubble Pipeline Parallelism): ZB-H1 with twice the warm-up. Rank r starts with 2(p - r) - 1
// forwards and defers 2r weight parts: each rank works without a gap from its first F to its last W.
//
//   rank 0 | F0 F1 F2 F3 F4 I0 W0 F5 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5
//   rank 1 |    F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5
//   rank 2 |       F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5
//
// Bubble: (p - 1)(F + I - 2W), none when all three take the same time.  Memory: min(m, 2p - 1) on every rank.

#include "rows.h"

namespace stagecraft::generator {
namespace {

Schedule make(const Shape& shape) {
  const auto make_row = [&](int r, std::span<const StageId> stages) {
    const int warm_up = std::min(shape.microbatches, 2 * (shape.ranks - 1 - r));
    return detail::with_deferred_weights(stages[0], warm_up, /*delay=*/2 * r, shape.microbatches);
  };
  Schedule schedule = detail::by_rank(shape, Placement::linear(shape.ranks), make_row);
  detail::line_up(schedule);
  return schedule;
}

}  // namespace

extern const Generator zb_h2 = {.name = "ZB-H2",
                                .placement = "linear",
                                .min_stages_per_rank = 1,
                                .max_stages_per_rank = 1,
                                .default_stages_per_rank = 1,
                                .takes_memory_limit = false,
                                .bubble = "(p-1)(F+I-2W)",
                                .memory = "min(m, 2p-1)",
                                .summary = "split backward and twice 1F1B's memory: no bubble when F = I = W",
                                .make = make};

}  // namespace stagecraft::generator
