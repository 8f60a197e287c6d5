#pragma once

#include <algorithm>
#include <span>

#include "stagecraft/core/in_parts.h"
#include "stagecraft/schedule/generator.h"

/// What several generators make their rows with: a loop over the ranks, rows of 1F1B and of linear zero-bubble
/// schedules, the order of interleaved ones, building blocks of V-shaped ones, and a common clock.
namespace stagecraft::detail {

/// Makes a schedule row by row: `make_row(rank, stages)` gets the rank's number and its stages, ascending. Rows are
/// made in parallel, so they must not depend on each other.
template <typename MakeRow>
Schedule by_rank(const Shape& shape, Placement placement, MakeRow&& make_row) {
  Schedule schedule{"", std::move(placement), shape.microbatches, {}};
  schedule.rows.resize(static_cast<std::size_t>(shape.ranks));
  const auto size = 2 * static_cast<std::size_t>(schedule.stages()) * static_cast<std::size_t>(shape.microbatches);
  in_parts(schedule.rows.size(), size, [&](std::size_t begin, std::size_t end) {
    for (std::size_t r = begin; r < end; ++r) {
      schedule.rows[r] = make_row(static_cast<int>(r), schedule.placement.stages_of(RankId(r)));
    }
  });
  return schedule;
}

/// Puts the rows of a compute-only schedule on a common clock of one slot per action, by inserting idle slots:
/// afterwards everything that an action needs from another rank is in an earlier slot. Keeps the order of each row.
void line_up(Schedule& schedule);

/// The same for rows of only F and I; inserts each W where its rank would otherwise idle, which includes waiting
/// because `live_limit` activations are live. The rows must keep `live_limit` if every W follows its I at once.
void line_up_with_weights(Schedule& schedule, int live_limit);

/// One rank of a 1F1B: `warm_up` forwards, then B and F in turn, then the Bs that remain. 1 <= warm_up <= microbatches.
inline Row warmed_up_1f1b(StageId stage, int warm_up, int microbatches) {
  Row row;
  row.reserve(2 * static_cast<std::size_t>(microbatches));
  for (int m = 0; m < warm_up; ++m) row.push_back(Action::forward(stage, MicrobatchId(m)));
  for (int m = 0; m < microbatches; ++m) {
    row.push_back(Action::backward(stage, MicrobatchId(m)));
    if (warm_up + m < microbatches) row.push_back(Action::forward(stage, MicrobatchId(warm_up + m)));
  }
  return row;
}

/// One rank of a linear zero-bubble schedule: `warm_up` forwards, then F and I in turn while forwards remain. The
/// oldest pending W follows each I from number `delay` (counted from 0) on; the remaining Ws come last.
inline Row with_deferred_weights(StageId stage, int warm_up, int delay, int microbatches) {
  Row row;
  row.reserve(3 * static_cast<std::size_t>(microbatches));
  int forwards = 0;
  int weights = 0;
  while (forwards < warm_up) row.push_back(Action::forward(stage, MicrobatchId(forwards++)));
  for (int m = 0; m < microbatches; ++m) {
    if (forwards < microbatches) row.push_back(Action::forward(stage, MicrobatchId(forwards++)));
    row.push_back(Action::backward_input(stage, MicrobatchId(m)));
    if (m >= delay) row.push_back(Action::backward_weight(stage, MicrobatchId(weights++)));
  }
  while (weights < microbatches) row.push_back(Action::backward_weight(stage, MicrobatchId(weights++)));
  return row;
}

/// The order in which an interleaved schedule visits a rank's stages. Microbatches are divided into rounds; the
/// microbatches of a round go through the rank's first stage, then through its second, and so on (or from the last
/// stage down).
///
/// There are max(1, m div p) rounds. If that does not divide m, the first rounds have one microbatch more: no round is
/// longer than the first, which sets the warm-up, so a backward never comes before its forward.
class InterleavedOrder {
 public:
  InterleavedOrder(int ranks, int stages_per_rank, int microbatches, bool from_last_stage)
      : stages_(stages_per_rank),
        rounds_(std::max(1, microbatches / ranks)),
        short_round_(microbatches / rounds_),
        long_rounds_(microbatches % rounds_),
        from_last_stage_(from_last_stage) {}

  struct Position {
    int local_stage;
    MicrobatchId microbatch;
  };

  /// Microbatches in the first, longest round.
  [[nodiscard]] int first_round() const { return short_round_ + (long_rounds_ > 0 ? 1 : 0); }

  Position next() {
    const Position here{from_last_stage_ ? stages_ - 1 - lap_ : lap_, MicrobatchId(round_begin_ + within_)};
    const int round_size = short_round_ + (round_ < long_rounds_ ? 1 : 0);
    if (++within_ == round_size) {
      within_ = 0;
      if (++lap_ == stages_) {
        lap_ = 0;
        ++round_;
        round_begin_ += round_size;
      }
    }
    return here;
  }

 private:
  int stages_;
  int rounds_;
  int short_round_;
  int long_rounds_;
  bool from_last_stage_;
  int round_ = 0;
  int round_begin_ = 0;
  int lap_ = 0;
  int within_ = 0;
};

/// A building block (Qi et al., Pipeline Parallelism with Controllable Memory): the ticks at which one microbatch
/// travels the V, down as F, up as F, down as B, up as B. Microbatch j follows the same path 6 j ticks later; 6 is the
/// work of one microbatch on a rank with F = I = W = 1.
///
///        rank 0  F . . . . . . F B . . . . . . B        hop[0..3]: ticks from rank to rank on each leg
///        rank 1  . F . . . . F . . B . . . . B .        turn[0..2]: extra ticks at each turn, which keep
///        rank 2  . . F . . F . . . . B . . B . .        two legs of neighbouring microbatches from
///        rank 3  . . . F F . . . . . . B B . . .        claiming the same tick
///
/// An activation lives from the F to the B of its stage, so the sum of the hops sets the memory: p * sum / 6 half-rank
/// activations per rank.
struct VBlock {
  int hop[4];
  int turn[3];
  ActionKind backward;  // kBackwardInput (1 tick) or kBackward (2 ticks)
};

/// Rows in the order of the block's ticks: F and the block's kind of backward, without idle slots and W. On the common
/// clock every action comes after its inputs, so the order can execute for any number of microbatches.
Schedule unroll(const VBlock& block, int ranks, int microbatches);

}  // namespace stagecraft::detail
