#pragma once

#include <algorithm>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::detail {

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

}  // namespace stagecraft::detail
