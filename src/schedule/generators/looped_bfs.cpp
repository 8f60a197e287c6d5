// Looped breadth-first: each rank runs all microbatches of its first stage, then of its next stage, and the backwards
// in reverse. Ranks rarely switch stages, so each sharded stage is gathered at most twice.
//
//   rank 0 | 0F0 0F1 2F0 2F1         2B1 2B0 0B1 0B0
//   rank 1 |     1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0
//
// Bubble: (p - 1)(F + B), F and B of one stage: GPipe's divided by v.  Memory: v m.

#include "rows.h"

namespace stagecraft::generator {
namespace {

Schedule make(const Shape& shape) {
  const auto make_row = [&](int r, std::span<const StageId> stages) {
    Row row(static_cast<std::size_t>(r));
    for (const StageId stage : stages) {
      for (int m = 0; m < shape.microbatches; ++m) row.push_back(Action::forward(stage, MicrobatchId(m)));
    }
    row.insert(row.end(), 2 * static_cast<std::size_t>(shape.ranks - 1 - r), Action::idle());
    for (std::size_t i = stages.size(); i-- > 0;) {
      for (int m = shape.microbatches - 1; m >= 0; --m) row.push_back(Action::backward(stages[i], MicrobatchId(m)));
    }
    return row;
  };
  return detail::by_rank(shape, Placement::loop(shape.ranks, shape.stages_per_rank), make_row);
}

}  // namespace

extern const Generator looped_bfs = {.name = "LoopedBFS",
                                     .placement = "loop",
                                     .min_stages_per_rank = 1,
                                     .max_stages_per_rank = kMaxStage,
                                     .default_stages_per_rank = 2,
                                     .takes_memory_limit = false,
                                     .bubble = "(p-1)(F+B)",
                                     .memory = "v m",
                                     .summary = "all microbatches of one stage before the next: few switches of stage",
                                     .make = make};

}  // namespace stagecraft::generator
