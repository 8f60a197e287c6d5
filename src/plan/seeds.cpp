#include "seeds.h"

#include <algorithm>
#include <cmath>

#include "stagecraft/schedule/generator.h"

namespace stagecraft::detail {
namespace {

/// Keeps the microbatches before `begin` and those at the end, and repeats the one at `begin` in between.
Policy extended(const Policy& policy, const Problem& from, const Problem& to, std::size_t begin) {
  const auto few = static_cast<std::size_t>(from.microbatches);
  const auto many = static_cast<std::size_t>(to.microbatches);
  const double interval = interval_of(policy.due, from);
  const double added = interval * static_cast<double>(many - few);
  Policy longer = policy;
  for (std::size_t part = 0; part < policy.due.size(); ++part) {
    std::vector<double>& due = longer.due[part];
    due.resize(static_cast<std::size_t>(to.stages) * many);
    for (std::size_t s = 0; s < static_cast<std::size_t>(to.stages); ++s) {
      const double* old = &policy.due[part][s * few];
      for (std::size_t j = 0; j < many; ++j) {
        const std::size_t from_end = many - j;
        due[s * many + j] = j < begin                 ? old[j]
                            : from_end <= few - begin ? old[few - from_end] + added
                                                      : old[begin] + interval * static_cast<double>(j - begin);
      }
    }
  }
  return longer;
}

}  // namespace

void for_each_known_schedule(const Placement& placement, int microbatches,
                             const std::function<bool(const Schedule&)>& visit) {
  const int v = placement.stages() / placement.ranks();
  for (const Generator* generator : generators()) {
    if (v < generator->min_stages_per_rank || v > generator->max_stages_per_rank) continue;
    if (generator->name == "ForwardOnly") continue;
    const Shape shape{.ranks = placement.ranks(), .stages_per_rank = v, .microbatches = microbatches};
    Schedule schedule = make_schedule(generator->name, shape);
    if (!(schedule.placement == placement)) continue;
    schedule.name = generator->name;
    if (!visit(schedule)) return;
  }
}

Schedule one_at_a_time(const Placement& placement, int microbatches) {
  std::vector<StepRow> rows(static_cast<std::size_t>(placement.ranks()));
  for (int j = 0; j < microbatches; ++j) {
    for (int s = 0; s < placement.stages(); ++s) {
      rows[placement.rank_of(StageId(s)).index()].push_back({s, j, Part::kForward});
    }
    for (int s = placement.stages(); s-- > 0;) {
      StepRow& row = rows[placement.rank_of(StageId(s)).index()];
      row.push_back({s, j, Part::kInput});
      row.push_back({s, j, Part::kWeight});
    }
  }
  return to_schedule(placement, microbatches, rows);
}

double interval_of(const std::array<std::vector<double>, 3>& times, const Problem& problem) {
  const auto m = static_cast<std::size_t>(problem.microbatches);
  const std::size_t begin = m / 3;
  const std::size_t end = std::max(begin + 1, 2 * m / 3);
  if (end >= m) return problem.unit;
  const double* due =
      &times[static_cast<std::size_t>(Part::kInput)][(static_cast<std::size_t>(problem.stages) - 1) * m];
  return std::max(problem.unit, (due[end] - due[begin]) / static_cast<double>(end - begin));
}

Policy policy_from(const Problem& problem, const Schedule& schedule, const Simulation& simulation) {
  const auto m = static_cast<std::size_t>(problem.microbatches);
  Policy policy;
  for (std::vector<double>& due : policy.due) due.resize(static_cast<std::size_t>(problem.stages) * m);
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    for (std::size_t i = 0; i < schedule.rows[r].size(); ++i) {
      const double start = simulation.times[r][i].start;
      for_each_part(schedule.rows[r][i], [&](const Action& part) {
        if (!is_compute(part.kind())) return;
        const std::size_t stage = part.stage().index();
        const std::size_t at = stage * m + part.microbatch().index();
        if (part.kind() == ActionKind::kForward) policy.of(Part::kForward)[at] = start;
        if (gives_input_gradient(part.kind())) policy.of(Part::kInput)[at] = start;
        if (part.kind() == ActionKind::kBackwardWeight) policy.of(Part::kWeight)[at] = start;
        if (part.kind() == ActionKind::kBackward) policy.of(Part::kWeight)[at] = start + problem.input[stage];
      });
    }
  }
  return policy;
}

Family variants_of(const Problem& problem, const Policy& policy) {
  constexpr std::array kSlacks = {0.0, 0.5, 1.0, 1e9};
  constexpr std::array kGaps = {0.0, 0.5, 1.0};
  constexpr std::array kLastGaps = {0.0, 1.0};
  return {kSlacks.size() * kGaps.size() * kLastGaps.size(), [=, unit = problem.unit](std::size_t i) {
            Policy variant = policy;
            variant.last_gap_last = kLastGaps[i % kLastGaps.size()];
            variant.gap = kGaps[i / kLastGaps.size() % kGaps.size()];
            variant.slack = unit * kSlacks[i / kLastGaps.size() / kGaps.size()];
            return variant;
          }};
}

Family family_of(const Problem& problem, const Block& block) {
  return {1, [&problem, block](std::size_t) { return policy_of(problem, block); }};
}

int enough_microbatches(const Problem& problem) {
  constexpr double kPhases = 4;  // warm-up and cool-down, and two more in between
  constexpr double kMore = 4;
  constexpr int kMostPerRank = 3;
  double under_way = HUGE_VAL;
  for (std::size_t r = 0; r < problem.limit.size(); ++r) {
    const double whole = problem.whole_of(r);
    if (whole > 0) under_way = std::min(under_way, problem.limit[r] / whole);
  }
  const int most = kMostPerRank * problem.ranks;
  return kPhases * under_way + kMore < most ? static_cast<int>(kPhases * under_way + kMore) : most;
}

Family extensions_of(const Policy& policy, const Problem& from, const Problem& to) {
  constexpr std::size_t kPoints = 12;
  constexpr std::size_t kFirst = 2;
  return {kPoints - kFirst - 1, [=, &from, &to](std::size_t i) {
            const std::size_t begin = static_cast<std::size_t>(from.microbatches) * (kFirst + i) / kPoints;
            return extended(policy, from, to, begin);
          }};
}

}  // namespace stagecraft::detail
