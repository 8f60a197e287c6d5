// Forward only: for inference or evaluation.
//
//   rank 0 | F0 F1 F2 F3
//   rank 1 |    F0 F1 F2 F3
//   rank 2 |       F0 F1 F2 F3
//
// With several stages per rank, microbatches go round the ranks in groups of p, so that consecutive rounds follow
// without a gap.
//
// Bubble: (p - 1) F.  Memory: 1 (nothing waits for a backward).

#include "rows.h"

namespace stagecraft::generator {
namespace {

Schedule make(const Shape& shape) {
  const auto make_row = [&](int, std::span<const StageId> stages) {
    Row row;
    for (int begin = 0; begin < shape.microbatches; begin += shape.ranks) {
      const int end = std::min(begin + shape.ranks, shape.microbatches);
      for (const StageId stage : stages) {
        for (int m = begin; m < end; ++m) row.push_back(Action::forward(stage, MicrobatchId(m)));
      }
    }
    return row;
  };
  Schedule schedule = detail::by_rank(shape, Placement::loop(shape.ranks, shape.stages_per_rank), make_row);
  detail::line_up(schedule);
  return schedule;
}

}  // namespace

extern const Generator forward_only = {.name = "ForwardOnly",
                                       .placement = "loop",
                                       .min_stages_per_rank = 1,
                                       .max_stages_per_rank = kMaxStage,
                                       .default_stages_per_rank = 1,
                                       .takes_memory_limit = false,
                                       .bubble = "(p-1) F",
                                       .memory = "1",
                                       .summary = "forwards alone, for inference and evaluation",
                                       .make = make};

}  // namespace stagecraft::generator
