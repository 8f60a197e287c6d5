#include "policy.h"

#include <algorithm>
#include <cmath>

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

namespace {

constexpr double kUnlimited = 1e9;

bool chance(Random& random, double probability) { return random.uniform() < probability; }

std::size_t pick(Random& random, std::size_t count) { return static_cast<std::size_t>(random.next() % count); }

std::size_t legs_of(const Problem& problem) {
  return 2 * static_cast<std::size_t>(1 + *std::max_element(problem.lap.begin(), problem.lap.end()));
}

/// A normally distributed step, small or large with equal probability.
double step(Random& random, double small, double large) {
  return random.normal() * (chance(random, 0.5) ? small : large);
}

/// A random change of a parameter that may be unlimited.
double changed(double value, double start, double spread, Random& random) {
  if (chance(random, 0.2)) return kUnlimited;
  const double from = value > kUnlimited / 10 ? start : value;
  return std::max(0.0, from * std::exp(0.4 * random.normal()) + spread * random.normal());
}

/// `knobs` is a Block or a Policy.
template <typename Knobs>
void change_gap(Knobs& knobs, Random& random) {
  double& gap = chance(random, 0.5) ? knobs.gap : chance(random, 0.5) ? knobs.last_gap_first : knobs.last_gap_last;
  gap = std::clamp(gap + step(random, 0.1, 0.4), 0.0, 1.2);
}

/// A range of microbatches: all, from the first on, up to the last, or a few.
std::pair<std::size_t, std::size_t> range_of(std::size_t m, Random& random) {
  switch (pick(random, 4)) {
    case 0:
      return {0, m};
    case 1:
      return {0, 1 + pick(random, m)};
    case 2:
      return {pick(random, m), m};
    default: {
      const std::size_t begin = pick(random, m);
      return {begin, std::min(m, begin + 1 + pick(random, 8))};
    }
  }
}

}  // namespace

Block random_block(const Problem& problem, Random& random) {
  Block block;
  const std::size_t legs = legs_of(problem);
  const bool straight = chance(random, 0.4);
  for (std::size_t leg = 0; leg < legs; ++leg) {
    block.stretch.push_back(straight || chance(random, 0.4) ? 0 : (chance(random, 0.5) ? 0.3 : 1.0) * random.uniform());
    block.turn.push_back(chance(random, 0.5) ? 0 : random.uniform());
  }
  block.interval = 0.8 + 0.4 * random.uniform();
  block.slack = chance(random, 0.1) ? kUnlimited : chance(random, 0.5) ? 0 : 2 * random.uniform();
  block.gap = random.uniform();
  for (double* delay : {&block.weight_delay_first, &block.weight_delay_last}) {
    if (chance(random, 0.5)) *delay = chance(random, 0.4) ? 0 : problem.ranks * random.uniform();
  }
  block.make_room_first = chance(random, 0.5);
  return block;
}

void mutate(Block& block, const Problem& problem, Random& random) {
  const std::size_t legs = legs_of(problem);
  block.stretch.resize(legs);
  block.turn.resize(legs);
  for (std::size_t left = 1 + pick(random, 3); left > 0; --left) {
    const std::size_t leg = pick(random, legs);
    switch (pick(random, 17)) {
      case 0:
      case 1:
      case 2:
      case 3:
        block.stretch[leg] = std::max(-0.05, block.stretch[leg] + step(random, 0.05, 0.2));
        break;
      case 4:
      case 5:
      case 6:
        block.turn[leg] += step(random, 0.1, 0.4);
        break;
      case 7:
        block.interval = std::max(0.3, block.interval + step(random, 0.02, 0.05));
        break;
      case 8:
      case 9:
        block.slack = changed(block.slack, 2, 0.05, random);
        break;
      case 10:
      case 11:
        change_gap(block, random);
        break;
      case 12:
        block.weight_delay_first = changed(block.weight_delay_first, problem.ranks, 0.2, random);
        break;
      case 13:
        block.weight_delay_last = changed(block.weight_delay_last, problem.ranks, 0.2, random);
        break;
      case 14:
        block.make_room_first = !block.make_room_first;
        break;
      case 15:
        block.reach = changed(block.reach, problem.ranks, 0.2, random);
        break;
      default:
        block.slack = 0;
    }
  }
}

void swap_pair(Policy& policy, const Problem& problem, const std::pair<Step, Step>& pair, Random& random) {
  const auto m = static_cast<std::size_t>(problem.microbatches);
  const auto index = [m](const Step& step) {
    return static_cast<std::size_t>(step.stage) * m + static_cast<std::size_t>(step.microbatch);
  };
  const double first = policy.of(pair.first.part)[index(pair.first)];
  const double second = policy.of(pair.second.part)[index(pair.second)];
  const double jump = second - first + problem.unit * (chance(random, 0.7) ? 1e-6 : 0.2 * random.uniform());
  const bool earlier = chance(random, 0.5);
  const Step& moved = earlier ? pair.second : pair.first;
  const auto from = static_cast<std::size_t>(moved.microbatch);
  const std::size_t to = chance(random, 0.5) ? from + 1 : std::min(m, from + 1 + pick(random, m));
  std::vector<double>& due = policy.of(moved.part);
  for (std::size_t j = from; j < to; ++j) {
    due[static_cast<std::size_t>(moved.stage) * m + j] += earlier ? -jump : jump;
  }
}

void mutate(Policy& policy, const Problem& problem, Random& random) {
  const auto m = static_cast<std::size_t>(problem.microbatches);
  for (std::size_t left = chance(random, 0.33) ? 2 : 1; left > 0; --left) {
    switch (pick(random, 16)) {
      case 0:
        policy.slack = chance(random, 0.2) ? 0 : std::max(0.0, policy.slack + problem.unit * step(random, 0.1, 0.5));
        continue;
      case 1:
        change_gap(policy, random);
        continue;
      case 2:
        policy.make_room_first = !policy.make_room_first;
        continue;
      case 3:
        policy.reach = problem.unit * changed(policy.reach / problem.unit, 2, 0.2, random);
        continue;
      default:
        break;
    }
    // A group of stages: a lap, a lap in proportion to the rank, one stage, or a few neighbours.
    const std::size_t scope = pick(random, 4);
    const auto middle = static_cast<int>(pick(random, static_cast<std::size_t>(problem.stages)));
    const auto [begin, end] = range_of(m, random);
    const double amount = problem.unit * random.normal() *
                          (chance(random, 0.5)   ? 0.1
                           : chance(random, 0.5) ? 0.5
                                                 : 2.0);
    std::vector<double>& due = policy.due[pick(random, 3)];
    for (int s = 0; s < problem.stages; ++s) {
      const auto at = static_cast<std::size_t>(s);
      if (problem.lap[at] != problem.lap[static_cast<std::size_t>(middle)]) continue;
      if (scope >= 2 && std::abs(s - middle) > (scope == 2 ? 0 : 3)) continue;
      const double shift = scope == 1 ? amount * problem.rank_of[at] / problem.ranks : amount;
      for (std::size_t j = begin; j < end; ++j) due[at * m + j] += shift;
    }
  }
}

}  // namespace stagecraft::detail
