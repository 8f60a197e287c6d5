// ZB-V (Qi et al.): two stages per rank in a V, so that a microbatch turns round on the last rank and its backward
// starts on rank 0, where its forward did. No bubble when F = I = W, in 1F1B's memory.
//
//   p = 2, m = 4:
//   rank 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 ...
//   rank 1 |     1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 ...
//
// The pattern needs at least 2p - 1 microbatches; with fewer, the slots of the missing ones stay idle.
//
// Bubble: 0 when F = I = W.  Memory: min(2m, 2p) half-rank activations.

#include "rows.h"

namespace stagecraft::generator {
namespace {

/// Writes one row. Each of the two stages has a microbatch counter per kind of action.
class Writer {
 public:
  Writer(StageId down, StageId up, int microbatches, int idle)
      : stage_{down, up}, microbatches_(microbatches), row_(static_cast<std::size_t>(idle)) {}

  void forward(int leg) { push(ActionKind::kForward, leg, forwards_[leg]++); }
  void input(int leg) { push(ActionKind::kBackwardInput, leg, inputs_[leg]++); }
  void weight(int leg) { push(ActionKind::kBackwardWeight, leg, weights_[leg]++); }
  void backward(int leg) {
    input(leg);
    weight(leg);
  }
  [[nodiscard]] int forwards(int leg) const { return forwards_[leg]; }
  [[nodiscard]] int owed(int leg) const { return inputs_[leg] - weights_[leg]; }
  Row take() { return std::move(row_); }

 private:
  void push(ActionKind kind, int leg, int microbatch) {
    row_.push_back(microbatch < microbatches_ ? Action(kind, stage_[leg], MicrobatchId(microbatch)) : Action::idle());
  }

  StageId stage_[2];
  int microbatches_;
  Row row_;
  int forwards_[2] = {0, 0};
  int inputs_[2] = {0, 0};
  int weights_[2] = {0, 0};
};

Row make_row(int p, int r, std::span<const StageId> stages, int microbatches) {
  const int pattern = std::max(2 * p - 1, microbatches);
  Writer write(stages[0], stages[1], microbatches, r);
  for (int i = 0; i < 2 * (p - r) - 1; ++i) write.forward(0);
  for (int i = 0; i < r; ++i) {
    write.forward(1);
    write.forward(0);
  }
  for (int i = 0; i < p - r; ++i) {
    write.forward(1);
    write.backward(1);
  }
  while (write.forwards(1) < write.forwards(0) || write.forwards(0) < pattern) {
    if (write.forwards(0) < pattern) write.forward(0);
    write.backward(0);
    write.forward(1);
    write.backward(1);
  }
  for (int i = 0; i < r; ++i) {
    write.input(0);
    write.input(1);
  }
  for (int i = 0; i < p - r; ++i) {
    write.input(0);
    write.weight(0);
  }
  while (write.owed(1) > 0) write.weight(1);
  while (write.owed(0) > 0) write.weight(0);
  return write.take();
}

Schedule make(const Shape& shape) {
  return detail::by_rank(shape, Placement::v(shape.ranks, 2), [&](int r, std::span<const StageId> stages) {
    return make_row(shape.ranks, r, stages, shape.microbatches);
  });
}

}  // namespace

extern const Generator zbv_zero_bubble = {.name = "ZBVZeroBubble",
                                          .placement = "v",
                                          .min_stages_per_rank = 2,
                                          .max_stages_per_rank = 2,
                                          .default_stages_per_rank = 2,
                                          .takes_memory_limit = false,
                                          .bubble = "0 when F = I = W",
                                          .memory = "min(2m, 2p)",
                                          .summary = "V placement and split backward: no bubble in 1F1B's memory",
                                          .make = make};

}  // namespace stagecraft::generator
