// Memory of a rank over time: activations, what an I leaves for its W, and messages that wait for their consumer.

#include "memory.h"

#include <algorithm>

namespace stagecraft {
namespace {

struct Change {
  double time;
  double amount;
};

/// Change of memory by one action: `grow` at its start, `shrink` at its end.
struct Effect {
  double grow = 0;
  double shrink = 0;
  void add(double amount) { (amount > 0 ? grow : shrink) += amount; }
};

Effect effect_of(const Action& action, const Costs& costs, bool training) {
  Effect effect;
  for_each_part(action, [&](const Action& part) {
    if (part.is_idle()) return;
    const StageCosts& stage = costs.of(part.stage());
    switch (part.kind()) {
      case ActionKind::kForward:
        effect.grow += stage.activation_memory;
        if (!training) effect.shrink -= stage.activation_memory;
        break;
      case ActionKind::kBackwardInput:
        effect.add(stage.weight_gradient_memory - stage.activation_memory);
        break;
      case ActionKind::kBackward:
        effect.shrink -= stage.activation_memory;
        break;
      case ActionKind::kBackwardWeight:
        effect.shrink -= stage.weight_gradient_memory;
        break;
      default:
        break;
    }
  });
  return effect;
}

}  // namespace

std::vector<int> peak_live_activations(const Schedule& schedule) {
  std::vector<int> peaks;
  for (const Row& row : schedule.rows) {
    const bool training = trains(row);
    int live = 0;
    int peak = 0;
    for (const Action& action : row) {
      // In an overlap, the activations of both halves are live at the same time.
      for_each_part(action, [&](const Action& part) { live += part.kind() == ActionKind::kForward; });
      peak = std::max(peak, live);
      for_each_part(action, [&](const Action& part) {
        live -= gives_weight_gradient(part.kind()) || (!training && part.kind() == ActionKind::kForward);
      });
    }
    peaks.push_back(peak);
  }
  return peaks;
}

double detail::replay_memory(const Schedule& schedule, const Costs& costs, const Arrivals& arrivals, RankId rank,
                             const std::vector<ActionTime>& times, std::vector<MemoryPoint>* curve) {
  const Row& row = schedule.rows[rank.index()];
  const bool training = trains(row);
  std::vector<Change> changes;
  changes.reserve(2 * row.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    const Effect effect = effect_of(row[i], costs, training);
    if (effect.grow != 0) changes.push_back({times[i].start, effect.grow});
    if (effect.shrink != 0) changes.push_back({times[i].end, effect.shrink});
  }
  const std::size_t own = changes.size();
  for (std::size_t i = 0; i < row.size(); ++i) {
    for_each_part(row[i], [&](const Action& part) {
      const Action send = message_needed(schedule.placement, part);
      if (send.is_idle() || costs.of(part.stage()).buffer_memory == 0) return;
      changes.push_back({arrivals.of(send), costs.of(part.stage()).buffer_memory});
      changes.push_back({times[i].end, -costs.of(part.stage()).buffer_memory});
    });
  }
  // Without messages, the changes are sorted already. At equal times, memory is released before it is taken.
  if (changes.size() > own) {
    std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
      return a.time < b.time || (a.time == b.time && a.amount < b.amount);
    });
  }
  double memory = 0;
  double peak = 0;
  for (const Change& change : changes) {
    memory += change.amount;
    peak = std::max(peak, memory);
    if (curve == nullptr) continue;
    if (!curve->empty() && curve->back().time == change.time) {
      curve->back().memory = memory;
    } else {
      curve->push_back({change.time, memory});
    }
  }
  return peak;
}

}  // namespace stagecraft
