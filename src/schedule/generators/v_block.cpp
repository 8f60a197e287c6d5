#include "v_block.h"

#include <algorithm>
#include <array>

namespace stagecraft::detail {
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
