#include "stagecraft/plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "feasibility.h"
#include "placement_plan.h"
#include "problem.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/plan/exact.h"

namespace stagecraft {
namespace {

using detail::Problem;

int stages_per_rank(const PlanRequest& request) {
  const auto entries = static_cast<int>(request.costs.stages.size());
  if (request.stages_per_rank > 0) return request.stages_per_rank;
  if (entries > 1) {
    if (entries % request.ranks == 0) return entries / request.ranks;
    throw InvalidArgument(
        fmt::format("costs for {} stages do not fit {} ranks: every rank gets as many stages as any "
                    "other, so give a multiple of {}, or one number for all",
                    entries, request.ranks, request.ranks));
  }
  return request.placement == PlacementChoice::kLoop || request.placement == PlacementChoice::kV ? 2 : 1;
}

/// Above these limits, a single trial takes seconds and the search finds nothing better than a known schedule.
void check_size(const PlanRequest& request, int stages_per_rank) {
  constexpr int kMostRanks = 1024;
  constexpr int kMostStagesPerRank = 1024;
  constexpr double kMostParts = 1 << 21;
  if (request.ranks > kMostRanks) {
    throw InvalidArgument(fmt::format(
        "a plan for {} ranks is too large, the most is {}: plan a pipeline of fewer ranks, or take a known schedule",
        request.ranks, kMostRanks));
  }
  if (stages_per_rank > kMostStagesPerRank) {
    throw InvalidArgument(fmt::format("a plan with {} stages per rank is too large, the most is {}: use fewer",
                                      stages_per_rank, kMostStagesPerRank));
  }
  const double stages = static_cast<double>(request.ranks) * stages_per_rank;
  if (3 * stages * request.microbatches <= kMostParts) return;
  throw InvalidArgument(
      fmt::format("a plan of {} ranks, {} stages per rank and {} microbatches is too large, it has {:.0f} F, I and W "
                  "and the most is {:.0f}: use at most {:.0f} microbatches",
                  request.ranks, stages_per_rank, request.microbatches, 3 * stages * request.microbatches, kMostParts,
                  std::floor(kMostParts / 3 / stages)));
}

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

/// The request, with `improved` called only for schedules shorter than those of all placements before.
PlanRequest with_shorter_only(const PlanRequest& request) {
  PlanRequest filtered = request;
  if (!request.improved) return filtered;
  filtered.improved = [&request, best = std::numeric_limits<double>::infinity()](const Schedule& schedule,
                                                                                 const Simulation& simulation) mutable {
    if (simulation.span >= best * (1 - 1e-12)) return;
    best = simulation.span;
    request.improved(schedule, simulation);
  };
  return filtered;
}

}  // namespace

std::vector<Placement> detail::placements_of(const PlanRequest& request) {
  if (request.ranks < 1) throw InvalidArgument(fmt::format("a plan needs at least 1 rank, got {}", request.ranks));
  if (request.microbatches < 1) {
    throw InvalidArgument(fmt::format("a plan needs at least 1 microbatch, got {}", request.microbatches));
  }
  const int v = stages_per_rank(request);
  check_size(request, v);
  const auto refuse = [&](std::string_view placement, std::string_view rule) {
    throw InvalidArgument(
        fmt::format("placement {} with {} stages per rank is not possible: it has {}", placement, v, rule));
  };
  switch (request.placement) {
    case PlacementChoice::kLinear:
      if (v != 1) refuse("linear", "1 stage per rank; use loop, v or any");
      return {Placement::linear(request.ranks)};
    case PlacementChoice::kLoop:
      return {Placement::loop(request.ranks, v)};
    case PlacementChoice::kV:
      if (v < 2) refuse("v", "2 or more stages per rank; use linear");
      return {Placement::v(request.ranks, v)};
    case PlacementChoice::kAny:
      break;
  }
  if (v == 1 || request.ranks == 1) return {Placement::loop(request.ranks, v)};
  return {Placement::v(request.ranks, v), Placement::loop(request.ranks, v)};
}

PlanResult plan(const PlanRequest& request) {
  check(request);
  const std::vector<Placement> placements = detail::placements_of(request);
  for (const Placement& placement : placements) {
    require_fit(request.costs, placement.stages(), placement.ranks());
    detail::check_limit(request, placement);
    if (request.exact) check_exact_size(placement, request.microbatches);
  }
  const PlanRequest watched = with_shorter_only(request);
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
      PlanResult result = detail::PlacementPlan(watched, placements[i], seconds, budget).run();
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
  return detail::least_memory(costs, placement, std::numeric_limits<int>::max());
}

double span_lower_bound(const Costs& costs, const Placement& placement, int microbatches, double memory_limit) {
  return detail::lower_bound(Problem(costs, placement, microbatches, memory_limit));
}

}  // namespace stagecraft
