#include "seeds.h"

namespace stagecraft::detail {
namespace {

/// Microbatches before `begin` as they were, those at the end too, and in between the one at `begin` again and again.
Policy extended(const Policy& policy, const Problem& from, const Problem& to, std::size_t begin) {
  const auto few = static_cast<std::size_t>(from.microbatches);
  const auto many = static_cast<std::size_t>(to.microbatches);
  const double added = from.unit * static_cast<double>(many - few);
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
                                                      : old[begin] + from.unit * static_cast<double>(j - begin);
      }
    }
  }
  return longer;
}

}  // namespace

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

void add_variants(std::vector<Policy>& seeds, const Problem& problem, const Policy& policy) {
  for (const double slack : {0.0, 0.5, 1.0, 1e9}) {
    for (const double gap : {0.0, 0.5, 1.0}) {
      for (const double last_gap : {0.0, 1.0}) {
        seeds.push_back(policy);
        seeds.back().slack = slack * problem.unit;
        seeds.back().gap = gap;
        seeds.back().last_gap_last = last_gap;
      }
    }
  }
}

void add_extended(std::vector<Policy>& seeds, const Policy& policy, const Problem& from, const Problem& to) {
  constexpr std::size_t kPoints = 12;
  for (std::size_t point = 2; point + 1 < kPoints; ++point) {
    const std::size_t begin = static_cast<std::size_t>(from.microbatches) * point / kPoints;
    seeds.push_back(extended(policy, from, to, begin));
  }
}

}  // namespace stagecraft::detail
