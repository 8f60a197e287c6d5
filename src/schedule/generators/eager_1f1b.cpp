// Eager 1F1B: a 1F1B whose warm-up is as deep as a memory limit L allows, up to 2(p - r) - 1 forwards on rank r. The
// extra forwards let a rank continue while a message is in transit. A deeper warm-up would hide nothing more, since a
// microbatch returns after at most 2(p - r) - 1 hops and computes.
//
//   rank 0 | F0 F1 F2 F3 F4 B0 F5 B1    B2    B3    B4    B5
//   rank 1 |    F0 F1 F2 B0 F3 B1 F4 B2 F5 B3    B4    B5
//   rank 2 |       F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5
//
// A limit below p - r is kept too, at the cost of a larger bubble. The warm-up never grows from one rank to the next,
// so the order stays executable.
//
// Bubble: (p - 1)(F + B), with room for a message of length F + B per hop.  Memory: min(m, L, 2(p - r) - 1) on rank r.

#include "rows.h"

namespace stagecraft::generator {
namespace {

Schedule make(const Shape& shape) {
  const int limit = shape.memory_limit == 0 ? shape.microbatches : std::min(shape.memory_limit, shape.microbatches);
  const auto make_row = [&](int r, std::span<const StageId> stages) {
    return detail::warmed_up_1f1b(stages[0], std::min(limit, 2 * (shape.ranks - r) - 1), shape.microbatches);
  };
  Schedule schedule = detail::by_rank(shape, Placement::linear(shape.ranks), make_row);
  detail::line_up(schedule);
  return schedule;
}

}  // namespace

extern const Generator eager_1f1b = {.name = "Eager1F1B",
                                     .placement = "linear",
                                     .min_stages_per_rank = 1,
                                     .max_stages_per_rank = 1,
                                     .default_stages_per_rank = 1,
                                     .takes_memory_limit = true,
                                     .bubble = "(p-1)(F+B), messages up to F+B hidden",
                                     .memory = "min(m, L, 2(p-r)-1)",
                                     .summary = "1F1B warmed up as deep as a memory limit L allows, to hide messages",
                                     .make = make};

}  // namespace stagecraft::generator
