// GPipe: all forwards, then all backwards.
//
//   rank 0 | F0 F1 F2 F3             B0 B1 B2 B3
//   rank 1 |    F0 F1 F2 F3       B0 B1 B2 B3
//   rank 2 |       F0 F1 F2 F3 B0 B1 B2 B3
//
// Bubble: (p - 1)(F + B).  Memory: m.

#include "rows.h"

namespace stagecraft::generator {
namespace {

Schedule make(const Shape& shape) {
  return detail::by_rank(shape, Placement::linear(shape.ranks), [&](int, std::span<const StageId> stages) {
    Row row;
    row.reserve(2 * static_cast<std::size_t>(shape.microbatches));
    for (int m = 0; m < shape.microbatches; ++m) row.push_back(Action::forward(stages[0], MicrobatchId(m)));
    for (int m = 0; m < shape.microbatches; ++m) row.push_back(Action::backward(stages[0], MicrobatchId(m)));
    return row;
  });
}

}  // namespace

extern const Generator gpipe = {.name = "GPipe",
                                .placement = "linear",
                                .min_stages_per_rank = 1,
                                .max_stages_per_rank = 1,
                                .default_stages_per_rank = 1,
                                .takes_memory_limit = false,
                                .bubble = "(p-1)(F+B)",
                                .memory = "m",
                                .summary = "all forwards, then all backwards",
                                .make = make};

}  // namespace stagecraft::generator
