#include "policy.h"

#include <algorithm>

namespace stagecraft::detail {

Policy policy_of(const Problem& problem, const Block& block) {
  const auto laps = static_cast<std::size_t>(1 + *std::max_element(problem.lap.begin(), problem.lap.end()));
  const double unit = problem.unit;
  const auto knob = [unit](const std::vector<double>& values, std::size_t leg) {
    return leg < values.size() ? unit * values[leg] : 0.0;
  };
  Policy policy;
  policy.slack = unit * block.slack;
  policy.gap = block.gap;
  policy.last_gap_first = block.last_gap_first;
  policy.last_gap_last = block.last_gap_last;
  policy.reach = unit * block.reach;
  policy.make_room_first = block.make_room_first;
  const auto count = static_cast<std::size_t>(problem.stages);
  const auto m = static_cast<std::size_t>(problem.microbatches);
  for (std::vector<double>& due : policy.due) due.resize(count * m);
  const auto fill = [&](Part part, std::size_t stage, double first) {
    for (std::size_t j = 0; j < m; ++j) {
      policy.of(part)[stage * m + j] = first + unit * block.interval * static_cast<double>(j);
    }
  };
  double time = 0;
  for (std::size_t s = 0; s < count; ++s) {
    const auto leg = static_cast<std::size_t>(problem.lap[s]);
    if (s > 0 && problem.lap[s] != problem.lap[s - 1]) time += knob(block.turn, leg);
    fill(Part::kForward, s, time);
    time += problem.forward[s] + problem.hop_up[s] + knob(block.stretch, leg);
  }
  for (std::size_t s = count; s-- > 0;) {
    const auto leg = 2 * laps - 1 - static_cast<std::size_t>(problem.lap[s]);
    if (s + 1 == count || problem.lap[s] != problem.lap[s + 1]) time += knob(block.turn, leg);
    fill(Part::kInput, s, time);
    const double along = problem.ranks > 1 ? static_cast<double>(problem.rank_of[s]) / (problem.ranks - 1) : 0;
    const double delay = block.weight_delay_first + along * (block.weight_delay_last - block.weight_delay_first);
    fill(Part::kWeight, s, time + problem.input[s] + unit * delay);
    time += problem.input[s] + problem.hop_down[s] + knob(block.stretch, leg);
  }
  return policy;
}

}  // namespace stagecraft::detail
