// 1F1B: a warm-up of as few forwards as keep every rank busy, then one backward and one forward in turn.
//
//   rank 0 | F0 F1 F2       B0 F3 B1 F4 B2    B3    B4
//   rank 1 |    F0 F1    B0 F2 B1 F3 B2 F4 B3    B4
//   rank 2 |       F0 B0 F1 B1 F2 B2 F3 B3 F4 B4
//
// Bubble: (p - 1)(F + B), as GPipe.  Memory: min(m, p - r) on rank r.

#include "rows.h"

namespace stagecraft::generator {
namespace {

Schedule make(const Shape& shape) {
  return detail::by_rank(shape, Placement::linear(shape.ranks), [&](int r, std::span<const StageId> stages) {
    const int warm_up = std::min(shape.microbatches, shape.ranks - r);
    return detail::warmed_up_1f1b(stages[0], warm_up, shape.microbatches);
  });
}

}  // namespace

extern const Generator one_f_one_b = {.name = "1F1B",
                                      .placement = "linear",
                                      .min_stages_per_rank = 1,
                                      .max_stages_per_rank = 1,
                                      .default_stages_per_rank = 1,
                                      .takes_memory_limit = false,
                                      .bubble = "(p-1)(F+B)",
                                      .memory = "min(m, p-r)",
                                      .summary = "one forward, one backward: GPipe's time in bounded memory",
                                      .make = make};

}  // namespace stagecraft::generator
