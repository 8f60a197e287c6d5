// Sharded stages are gathered before they compute and dropped when other stages need the memory. Looking ahead to the
// next few distinct stages makes each UNSHARD a prefetch.

#include <algorithm>

#include "rewrite.h"
#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

/// For each action of a row: the first `count` distinct stages that compute from this action on. There can be one more,
/// since the two stages of an overlap are not separated.
class LookAhead {
 public:
  LookAhead(const Row& row, int count) : count_(static_cast<std::size_t>(count)), need_(row.size()) {
    for (std::size_t i = row.size(); i-- > 0;) {
      if (row[i].is_overlap()) bring(row[i].second().stage(), i);
      bring(row[i].stage(), i);
      remember(i);
    }
  }

  [[nodiscard]] std::span<const StageId> operator[](std::size_t i) const {
    return std::span(stages_).subspan(need_[i].begin, need_[i].size);
  }
  /// Whether action i needs the same stages as the previous action.
  [[nodiscard]] bool same_as_before(std::size_t i) const { return i > 0 && need_[i].begin == need_[i - 1].begin; }

 private:
  struct Seen {
    StageId stage;
    std::size_t by;  // the next action that uses the stage
  };
  struct Need {
    std::size_t begin = 0;  // in stages_
    std::size_t size = 0;
  };

  /// Moves a stage to the front of `seen_`, which lists the stages by their next use as the row is walked backwards.
  /// Only the first count + 1 are kept, since no more can be needed.
  void bring(StageId stage, std::size_t by) {
    std::size_t at = 0;
    while (at < seen_.size() && seen_[at].stage != stage) ++at;
    if (at == seen_.size()) {
      if (at <= count_) {
        seen_.emplace_back();
      } else {
        --at;
      }
    }
    std::move_backward(seen_.begin(), seen_.begin() + static_cast<std::ptrdiff_t>(at),
                       seen_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    seen_.front() = {stage, by};
  }

  void remember(std::size_t i) {
    std::size_t size = std::min(count_, seen_.size());
    if (size < seen_.size() && seen_[size].by == seen_[size - 1].by) ++size;
    const auto begin = last_.begin;
    const auto same = [&](std::size_t k) { return stages_[begin + k] == seen_[k].stage; };
    bool unchanged = size == last_.size;
    for (std::size_t k = 0; unchanged && k < size; ++k) unchanged = same(k);
    if (!unchanged) {
      last_ = {stages_.size(), size};
      for (std::size_t k = 0; k < size; ++k) stages_.push_back(seen_[k].stage);
    }
    need_[i] = last_;
  }

  std::size_t count_;
  std::vector<Seen> seen_;
  std::vector<StageId> stages_;
  std::vector<Need> need_;
  Need last_;
};

bool contains(std::span<const StageId> stages, StageId stage) {
  return std::find(stages.begin(), stages.end(), stage) != stages.end();
}

Row with_sharding(const Row& row, int max_active) {
  const LookAhead need(row, max_active);
  std::vector<StageId> active;  // ascending, the order of several RESHARDs in one place
  Row sharded;
  sharded.reserve(row.size() + 8);
  const auto reshard = [&](StageId stage) { sharded.push_back(Action::of_stage(ActionKind::kReshard, stage)); };
  const auto make_active = [&](std::span<const StageId> needed) {
    std::erase_if(active, [&](StageId stage) {
      if (contains(needed, stage)) return false;
      reshard(stage);
      return true;
    });
    for (const StageId stage : needed) {
      if (contains(active, stage)) continue;
      sharded.push_back(Action::of_stage(ActionKind::kUnshard, stage));
      active.insert(std::lower_bound(active.begin(), active.end(), stage), stage);
    }
  };
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (!need.same_as_before(i)) make_active(need[i]);
    sharded.push_back(row[i]);
  }
  for (const StageId stage : active) reshard(stage);
  return sharded;
}

/// The case in which all stages of a rank fit at once: each is gathered at the start and dropped right after its last
/// use. Gives the same result as the look-ahead, faster.
void shard_with_room_for_all(Row& row, const Placement& placement, RankId rank) {
  std::vector<StageId> in_use;  // in the order of first use
  std::vector<std::size_t> last_use(placement.stages_of(rank).size(), 0);
  for (std::size_t i = 0; i < row.size(); ++i) {
    for_each_part(row[i], [&](const Action& part) {
      std::size_t& end = last_use[static_cast<std::size_t>(placement.local_index(part.stage()))];
      if (end == 0) in_use.push_back(part.stage());
      end = i + 1;
    });
  }
  std::vector<detail::Insertion> insertions;
  for (const StageId stage : in_use) insertions.push_back({0, Action::of_stage(ActionKind::kUnshard, stage)});
  const auto gathered = static_cast<std::ptrdiff_t>(insertions.size());
  for (const StageId stage : placement.stages_of(rank)) {  // ascending, also when several end at the same action
    const std::size_t end = last_use[static_cast<std::size_t>(placement.local_index(stage))];
    if (end > 0) insertions.push_back({end, Action::of_stage(ActionKind::kReshard, stage)});
  }
  std::stable_sort(insertions.begin() + gathered, insertions.end(),
                   [](const auto& a, const auto& b) { return a.before < b.before; });
  detail::insert_all(row, insertions);
}

void shard(Schedule& schedule, int max_active) {
  detail::for_each_rank(schedule, [&](std::size_t r) {
    Row& row = schedule.rows[r];
    std::erase_if(row, [](const Action& action) { return action.is_idle(); });
    const auto stages = schedule.placement.stages_of(RankId(r)).size();
    if (stages <= static_cast<std::size_t>(max_active)) {
      shard_with_room_for_all(row, schedule.placement, RankId(r));
    } else {
      row = with_sharding(row, max_active);
    }
  });
}

void require_active(int max_active) {
  if (max_active >= 1 && max_active <= kMaxStage) return;
  throw InvalidArgument("unshard_reshard: at least 1 stage must be active at a time, got " +
                        std::to_string(max_active));
}

}  // namespace

extern const detail::Rewrite detail::unshard_reshard_rewrite = {
    .pass = {.name = "unshard_reshard",
             .summary = "UNSHARD before a stage computes, RESHARD when others need the room"},
    .refuses = kinds_where([](ActionKind k) { return k != ActionKind::kIdle && !is_compute(k); }),
    .remedy = "the schedule is lowered already: give the compute-only one",
    .apply = [](Schedule& schedule) { shard(schedule, kDefaultMaxActive); },
    .apply_with =
        [](Schedule& schedule, int max_active) {
          require_active(max_active);
          shard(schedule, max_active);
        }};

void unshard_reshard(Schedule& schedule, int max_active) {
  require_active(max_active);
  detail::require_input_of(detail::unshard_reshard_rewrite, schedule);
  shard(schedule, max_active);
}

}  // namespace stagecraft
