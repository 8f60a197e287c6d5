#include "line_up.h"

#include <deque>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/stage_microbatch_table.h"

namespace stagecraft::detail {
namespace {

constexpr int kNotYet = INT32_MAX;
constexpr int kNoLimit = INT32_MAX;

class Clock {
 public:
  Clock(Schedule& schedule, bool insert_weights, int live_limit)
      : schedule_(schedule),
        insert_weights_(insert_weights),
        live_limit_(live_limit),
        forward_tick_(schedule, kNotYet),
        backward_tick_(schedule, kNotYet),
        ranks_(schedule.rows.size()) {}

  void run() {
    std::size_t unfinished = 0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) unfinished += has_work(r);
    for (int tick = 0; unfinished > 0; ++tick) {
      bool progress = false;
      unfinished = 0;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        if (!has_work(r)) continue;
        progress |= advance(r, tick);
        unfinished += has_work(r);
      }
      if (!progress) throw InternalError(schedule_.name + ": the generated order cannot execute");
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) schedule_.rows[r] = std::move(ranks_[r].slots);
  }

 private:
  struct Rank {
    std::size_t next = 0;             // position in the row
    int live = 0;                     // forwards without their W
    std::deque<Action> owed_weights;  // Ws whose I is done, oldest first
    Row slots;                        // the row being written
  };

  [[nodiscard]] bool has_work(std::size_t r) const {
    return ranks_[r].next < schedule_.rows[r].size() || !ranks_[r].owed_weights.empty();
  }

  /// Fills one slot of one rank. Returns false if the slot is idle.
  bool advance(std::size_t r, int tick) {
    Rank& rank = ranks_[r];
    if (rank.next < schedule_.rows[r].size() && ready(schedule_.rows[r][rank.next], rank, tick)) {
      const Action action = schedule_.rows[r][rank.next++];
      mark_done(action, rank, tick);
      rank.slots.push_back(action);
      return true;
    }
    if (rank.owed_weights.empty()) {
      rank.slots.push_back(Action::idle());
      return false;
    }
    rank.slots.push_back(rank.owed_weights.front());
    rank.owed_weights.pop_front();
    --rank.live;
    return true;
  }

  [[nodiscard]] bool ready(const Action& action, const Rank& rank, int tick) const {
    const StageId stage = action.stage();
    if (action.kind() == ActionKind::kForward) {
      if (rank.live >= live_limit_) return false;
      return stage == StageId(0) || forward_tick_(stage - 1, action.microbatch()) < tick;
    }
    if (action.kind() == ActionKind::kBackwardWeight) return true;
    if (stage.value == schedule_.stages() - 1) return forward_tick_(stage, action.microbatch()) < tick;
    return backward_tick_(stage + 1, action.microbatch()) < tick;
  }

  void mark_done(const Action& action, Rank& rank, int tick) {
    if (action.kind() == ActionKind::kForward) {
      forward_tick_(action.stage(), action.microbatch()) = tick;
      if (insert_weights_) ++rank.live;
    } else if (action.kind() != ActionKind::kBackwardWeight) {
      backward_tick_(action.stage(), action.microbatch()) = tick;
      if (insert_weights_) rank.owed_weights.push_back(Action::backward_weight(action.stage(), action.microbatch()));
    }
  }

  Schedule& schedule_;
  bool insert_weights_;
  int live_limit_;
  StageMicrobatchTable<int> forward_tick_;
  StageMicrobatchTable<int> backward_tick_;
  std::vector<Rank> ranks_;
};

}  // namespace

void line_up(Schedule& schedule) { Clock(schedule, /*insert_weights=*/false, kNoLimit).run(); }

void line_up_with_weights(Schedule& schedule, int live_limit) {
  Clock(schedule, /*insert_weights=*/true, live_limit).run();
}

}  // namespace stagecraft::detail
