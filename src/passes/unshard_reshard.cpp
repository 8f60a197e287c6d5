// Sharded stages are gathered before they compute and dropped when others need the room. Looking ahead to the next few
// distinct stages makes each UNSHARD a prefetch.

#include <algorithm>
#include <array>

#include "stagecraft/core/error.h"
#include "stagecraft/passes/pass.h"
#include "well_formed.h"

namespace stagecraft {
namespace {

/// For each action of a row, the first `count` distinct stages that compute from it on, itself included. An overlap brings
/// both its stages before the count is looked at, so it can bring one more.
class LookAhead {
 public:
  LookAhead(const Row& row, int count) : width_(static_cast<std::size_t>(count) + 1), need_(row.size() * width_) {
    // From the back: the stages seen from action i on are its own, then those seen from i + 1 on without its own. `seen`
    // keeps only the first `width_` of them, which is all that a prefix of that length can ever depend on.
    std::vector<Seen> seen;
    std::vector<Seen> before;
    sizes_.resize(row.size());
    for (std::size_t i = row.size(); i-- > 0;) {
      before.swap(seen);
      seen.clear();
      for_each_part(row[i], [&](const Action& part) { add(seen, {part.stage(), i}); });
      for (const Seen& later : before) add(seen, later);
      std::size_t size = 0;
      for (const Seen& s : seen) {
        if (size >= static_cast<std::size_t>(count) && s.by != seen[size - 1].by) break;
        need_[i * width_ + size++] = s.stage;
      }
      sizes_[i] = static_cast<std::uint32_t>(size);
    }
  }

  [[nodiscard]] std::span<const StageId> operator[](std::size_t i) const {
    return std::span(need_).subspan(i * width_, sizes_[i]);
  }

 private:
  struct Seen {
    StageId stage;
    std::size_t by;  // the action that brought it
  };

  void add(std::vector<Seen>& seen, const Seen& next) const {
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const Seen& s) { return s.stage == next.stage; });
    if (!known && seen.size() < width_) seen.push_back(next);
  }

  std::size_t width_;
  std::vector<StageId> need_;
  std::vector<std::uint32_t> sizes_;
};

bool contains(std::span<const StageId> stages, StageId stage) {
  return std::find(stages.begin(), stages.end(), stage) != stages.end();
}

Row with_sharding(const Row& row, int max_active) {
  const LookAhead need(row, max_active);
  std::vector<StageId> active;  // ascending: several RESHARDs at once come in this order
  Row sharded;
  sharded.reserve(row.size() + 8);
  const auto reshard = [&](StageId stage) { sharded.push_back(Action::of_stage(ActionKind::kReshard, stage)); };
  for (std::size_t i = 0; i < row.size(); ++i) {
    std::erase_if(active, [&](StageId stage) {
      if (contains(need[i], stage)) return false;
      reshard(stage);
      return true;
    });
    for (const StageId stage : need[i]) {
      if (contains(active, stage)) continue;
      sharded.push_back(Action::of_stage(ActionKind::kUnshard, stage));
      active.insert(std::lower_bound(active.begin(), active.end(), stage), stage);
    }
    sharded.push_back(row[i]);
  }
  for (const StageId stage : active) reshard(stage);
  return sharded;
}

}  // namespace

void unshard_reshard(Schedule& schedule, int max_active) {
  if (max_active < 1 || max_active > kMaxStage) {
    throw InvalidArgument("unshard_reshard: at least 1 stage must be active at a time, got " +
                          std::to_string(max_active));
  }
  detail::require_none(
      schedule, "unshard_reshard", [](ActionKind k) { return k != ActionKind::kIdle && !is_compute(k); },
      "the schedule is lowered already: give the compute-only one");
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    Row& row = schedule.rows[r];
    std::erase_if(row, [](const Action& action) { return action.is_idle(); });
    // No rank can have more stages active than it has.
    row = with_sharding(row, std::min<int>(max_active, static_cast<int>(schedule.placement.stages_of(RankId(r)).size()) + 1));
  }
}

}  // namespace stagecraft
