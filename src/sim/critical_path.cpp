#include "stagecraft/sim/critical_path.h"

#include <algorithm>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/dataflow.h"

namespace stagecraft {
namespace {

class Walk {
 public:
  Walk(const Schedule& schedule, const Simulation& simulation)
      : schedule_(schedule),
        times_(simulation.times),
        waits_(simulation.parameter_waits),
        slots_(compute_slots(schedule)) {}

  std::vector<CriticalAction> run() {
    std::vector<CriticalAction> path;
    for (CriticalAction at = last_of_all(); at.slot >= 0;) {
      CriticalAction before = before_on_rank(at);
      // A wait for parameters begins when all else is there, up to the last bits of a sum.
      const double ready = at.waited > 0 ? at.start - at.waited * (1 + 1e-9) : at.start;
      if (before.slot < 0 || before.end < ready) {
        const CriticalAction giver = latest_giver(at);
        if (giver.slot >= 0) {
          at.after_message = true;
          before = giver;
        }
      }
      path.push_back(at);
      at = before;
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  [[nodiscard]] CriticalAction at(RankId rank, int slot) const {
    if (slot < 0) return {.rank = rank, .slot = -1};
    const auto i = static_cast<std::size_t>(slot);
    const ActionTime time = times_[rank.index()][i];
    return {.rank = rank,
            .slot = slot,
            .action = schedule_.rows[rank.index()][i],
            .start = time.start,
            .end = time.end,
            .waited = waits_.empty() ? 0 : waits_[rank.index()][i]};
  }

  [[nodiscard]] CriticalAction before_on_rank(const CriticalAction& action) const {
    int slot = action.slot - 1;
    while (slot >= 0 && !is_compute(schedule_.rows[action.rank.index()][static_cast<std::size_t>(slot)].kind())) --slot;
    return at(action.rank, slot);
  }

  [[nodiscard]] CriticalAction last_of_all() const {
    CriticalAction last{.slot = -1};
    for (int r = 0; r < schedule_.ranks(); ++r) {
      const auto behind = static_cast<int>(schedule_.rows[static_cast<std::size_t>(r)].size());
      const CriticalAction candidate = before_on_rank({.rank = RankId(r), .slot = behind});
      if (candidate.slot >= 0 && (last.slot < 0 || candidate.end > last.end)) last = candidate;
    }
    return last;
  }

  [[nodiscard]] CriticalAction latest_giver(const CriticalAction& taker) const {
    CriticalAction latest{.slot = -1};
    for_each_part(taker.action, [&](const Action& part) {
      const Action send = message_needed(schedule_.placement, part);
      if (send.is_idle()) return;
      const ComputeSlots slots = slots_(send.stage(), send.microbatch());
      const CriticalAction giver = at(schedule_.placement.rank_of(send.stage()),
                                      send.kind() == ActionKind::kSendForward ? slots.forward : slots.backward);
      if (latest.slot < 0 || giver.end > latest.end) latest = giver;
    });
    return latest;
  }

  const Schedule& schedule_;
  const std::vector<std::vector<ActionTime>>& times_;
  const std::vector<std::vector<double>>& waits_;  // empty without replicas
  StageMicrobatchTable<ComputeSlots> slots_;
};

}  // namespace

std::vector<CriticalAction> critical_path(const Schedule& schedule, const Simulation& simulation) {
  if (simulation.times.size() != schedule.rows.size()) {
    throw InvalidArgument("a critical path needs the times of a simulation: simulate with keep_times");
  }
  return Walk(schedule, simulation).run();
}

CriticalSummary summarize(const std::vector<CriticalAction>& path, int ranks) {
  CriticalSummary summary;
  summary.by_rank.resize(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < path.size(); ++i) {
    summary.compute += path[i].end - path[i].start;
    summary.by_rank[path[i].rank.index()] += path[i].end - path[i].start;
    summary.parameters += path[i].waited;
    if (path[i].after_message) summary.messages += path[i].start - path[i].waited - path[i - 1].end;
  }
  return summary;
}

}  // namespace stagecraft
