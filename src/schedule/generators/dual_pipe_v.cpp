// DualPipeV (DeepSeek's DualPipe cut in half): two stages per rank in a V; in the steady phase every forward runs
// together with a backward of the rank's other stage, so that the messages of one hide behind the compute of the other.
//
//   one rank, phases:  F0 F0 ... | F0 F1 | I1 W F1 | F0&B1 F1&B0 ... | B1 F1&B0 | B1 B0 | W B0 | W
//
// The pattern needs at least 2p microbatches; with fewer, the actions of missing microbatches are left out, and an
// overlap that loses one half becomes the other half alone.
//
// Bubble: (p - 1)(F&B + B - 3W), F&B an overlapped pair, per half-rank stage.  Memory: min(2m, 2p + 1) half-rank
// activations.

#include <deque>

#include "rows.h"

namespace stagecraft::generator {
namespace {

class Writer {
 public:
  Writer(StageId down, StageId up, int microbatches) : stage_{down, up}, microbatches_(microbatches) {}

  void forward(int leg) { push(next_forward(leg)); }
  void full(int leg) { push(next_backward(ActionKind::kBackward, leg)); }
  void input(int leg) {
    const Action action = next_backward(ActionKind::kBackwardInput, leg);
    owed_.push_back(Action::backward_weight(action.stage(), action.microbatch()));
    push(action);
  }
  /// Adds the oldest pending W, if there is one.
  void weight() {
    if (owed_.empty()) return;
    push(owed_.front());
    owed_.pop_front();
  }
  void overlap(int forward_leg, int backward_leg) {
    const Action forward = next_forward(forward_leg);
    const Action backward = next_backward(ActionKind::kBackward, backward_leg);
    if (exists(forward) && exists(backward)) {
      row_.push_back(Action::overlap(forward, backward));
    } else {
      push(forward);
      push(backward);
    }
  }
  Row take() { return std::move(row_); }

 private:
  Action next_forward(int leg) { return Action::forward(stage_[leg], MicrobatchId(forwards_[leg]++)); }
  Action next_backward(ActionKind kind, int leg) { return {kind, stage_[leg], MicrobatchId(backwards_[leg]++)}; }
  [[nodiscard]] bool exists(const Action& action) const { return action.microbatch().value < microbatches_; }
  void push(const Action& action) {
    if (exists(action)) row_.push_back(action);
  }

  StageId stage_[2];
  int microbatches_;
  Row row_;
  std::deque<Action> owed_;
  int forwards_[2] = {0, 0};
  int backwards_[2] = {0, 0};
};

Row make_row(int p, int r, std::span<const StageId> stages, int microbatches) {
  const int pattern = std::max(2 * p, microbatches);
  Writer write(stages[0], stages[1], microbatches);
  for (int i = 0; i < 2 * (p - r - 1); ++i) write.forward(0);
  for (int i = 0; i < r + 1; ++i) {
    write.forward(0);
    write.forward(1);
  }
  for (int i = 0; i < p - r - 1; ++i) {
    write.input(1);
    write.weight();
    write.forward(1);
  }
  for (int i = 0; i < pattern - 2 * p + r + 1; ++i) {
    if (i == 0 && r == p - 1) {  // without overlap, the last rank's first pair lets its neighbour start sooner
      write.forward(0);
      write.full(1);
    } else {
      write.overlap(0, 1);
    }
    write.overlap(1, 0);
  }
  for (int i = 0; i < p - r - 1; ++i) {
    write.full(1);
    write.overlap(1, 0);
  }
  // From the middle of this phase on, backwards are split, and their weight parts fill the end.
  bool split = false;
  const auto backward = [&](int leg) { split ? write.input(leg) : write.full(leg); };
  for (int i = 0; i < r + 1; ++i) {
    const bool middle = i == (r + 1) / 2;
    if (middle && r % 2 == 1) split = true;
    backward(1);
    if (middle && r % 2 == 0) split = true;
    backward(0);
  }
  for (int i = 0; i < p - r - 1; ++i) {
    write.weight();
    backward(0);
  }
  for (int i = 0; i < r + 1; ++i) write.weight();
  return write.take();
}

Schedule make(const Shape& shape) {
  return detail::by_rank(shape, Placement::v(shape.ranks, 2), [&](int r, std::span<const StageId> stages) {
    return make_row(shape.ranks, r, stages, shape.microbatches);
  });
}

}  // namespace

extern const Generator dual_pipe_v = {.name = "DualPipeV",
                                      .placement = "v",
                                      .min_stages_per_rank = 2,
                                      .max_stages_per_rank = 2,
                                      .default_stages_per_rank = 2,
                                      .takes_memory_limit = false,
                                      .bubble = "(p-1)(F&B+B-3W)",
                                      .memory = "min(2m, 2p+1)",
                                      .summary = "V placement, forward and backward overlapped to hide messages",
                                      .make = make};

}  // namespace stagecraft::generator
