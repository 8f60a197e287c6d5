#include "rows.h"

#include <array>
#include <deque>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/dataflow.h"

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

namespace {

constexpr std::int64_t kInterval = 6;

struct Leg {
  std::int64_t tick;
  ActionKind kind;
  StageId stage;
};

/// The four visits of microbatch 0 to rank r, by tick.
std::array<Leg, 4> legs_of(const VBlock& block, int p, int r) {
  const std::int64_t backward = block.backward == ActionKind::kBackward ? 2 : 1;
  const std::int64_t down = r;
  const std::int64_t up = p - 1 - r;
  const std::int64_t last = p - 1;
  const std::int64_t first_turn = block.hop[0] * last + 1 + block.turn[0];
  const std::int64_t second_turn = first_turn + block.hop[1] * last + 1 + block.turn[1];
  const std::int64_t third_turn = second_turn + block.hop[2] * last + backward + block.turn[2];
  const StageId outward(r);
  const StageId homeward(2 * p - 1 - r);
  return {{{block.hop[0] * down, ActionKind::kForward, outward},
           {first_turn + block.hop[1] * up, ActionKind::kForward, homeward},
           {second_turn + block.hop[2] * down, block.backward, homeward},
           {third_turn + block.hop[3] * up, block.backward, outward}}};
}

}  // namespace

Schedule unroll(const VBlock& block, int ranks, int microbatches) {
  Schedule schedule{"", Placement::v(ranks, 2), microbatches, {}};
  for (int r = 0; r < ranks; ++r) {
    const auto legs = legs_of(block, ranks, r);
    Row& row = schedule.rows.emplace_back();
    row.reserve(4 * static_cast<std::size_t>(microbatches));
    std::array<int, 4> next{};  // next microbatch of each leg: merges four sorted streams
    for (std::int64_t left = 4 * std::int64_t{microbatches}; left > 0; --left) {
      std::size_t soonest = 4;
      for (std::size_t i = 0; i < legs.size(); ++i) {
        if (next[i] == microbatches) continue;
        const auto tick = [&](std::size_t leg) { return legs[leg].tick + kInterval * next[leg]; };
        if (soonest == 4 || tick(i) < tick(soonest)) soonest = i;
      }
      row.emplace_back(legs[soonest].kind, legs[soonest].stage, MicrobatchId(next[soonest]++));
    }
  }
  return schedule;
}

}  // namespace stagecraft::detail
