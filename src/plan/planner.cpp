#include "stagecraft/plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "lower_bound.h"
#include "placement_plan.h"
#include "placements.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/plan/exact.h"
#include "tolerances.h"

namespace stagecraft {
namespace {

using detail::kMemoryMargin;
using detail::Problem;

void check(const PlanRequest& request) {
  if (!(request.memory_limit >= 0) || !std::isfinite(request.memory_limit)) {
    throw InvalidArgument(
        fmt::format("a memory limit of {} is not possible: give one above 0, or 0 for none", request.memory_limit));
  }
  if (!(request.time_budget > 0)) {
    throw InvalidArgument(fmt::format("a time budget of {} s is not possible: give one above 0", request.time_budget));
  }
  if (!(request.effort > 0)) throw InvalidArgument(fmt::format("an effort of {} is not possible", request.effort));
}

void check_limit(const PlanRequest& request, const Placement& placement) {
  const double smallest = smallest_memory_limit(request.costs, placement);
  if (request.memory_limit == 0 || request.memory_limit >= smallest - kMemoryMargin) return;
  throw InfeasibleLimit(
      fmt::format(
          "a memory limit of {:g} is too small: a rank holds a microbatch's activations in all its stages before "
          "the first of them can go, which is {:g} here; give at least that",
          request.memory_limit, smallest),
      smallest);
}

/// The plan with the smaller span, with the trials and known schedules of both.
PlanResult better(PlanResult first, PlanResult second) {
  const bool keep = first.simulation.span <= second.simulation.span;
  PlanResult& winner = keep ? first : second;
  PlanResult& loser = keep ? second : first;
  winner.trials += loser.trials;
  winner.finished = winner.finished && loser.finished;
  for (NamedOutcome& named : loser.named) winner.named.push_back(std::move(named));
  return std::move(winner);
}

}  // namespace

PlanResult plan(const PlanRequest& request) {
  check(request);
  const std::vector<Placement> placements = detail::placements_of(request);
  for (const Placement& placement : placements) {
    require_fit(request.costs, placement.stages(), placement.ranks());
    check_limit(request, placement);
    if (request.exact) check_exact_size(placement, request.microbatches);
  }
  const std::function<double()> seconds = [start = seconds_now()] { return seconds_now() - start; };
  std::optional<PlanResult> best;
  std::optional<InfeasibleLimit> refused;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    if (best && (seconds() > request.time_budget || (request.stop && request.stop()))) {
      best->finished = false;
      break;
    }
    const double budget = request.time_budget * static_cast<double>(i + 1) / static_cast<double>(placements.size());
    try {
      PlanResult result = detail::PlacementPlan(request, placements[i], seconds, budget).run();
      best = best ? better(std::move(*best), std::move(result)) : std::move(result);
    } catch (const InfeasibleLimit& error) {
      if (!refused || error.smallest() < refused->smallest()) refused = error;
    }
  }
  if (!best) throw InfeasibleLimit(*refused);
  best->seconds = seconds();
  return std::move(*best);
}

double smallest_memory_limit(const Costs& costs, const Placement& placement) {
  const Problem problem(costs, placement, 1, 0);
  return *std::max_element(problem.whole.begin(), problem.whole.end());
}

double span_lower_bound(const Costs& costs, const Placement& placement, int microbatches, double memory_limit) {
  return detail::lower_bound(Problem(costs, placement, microbatches, memory_limit));
}

}  // namespace stagecraft
