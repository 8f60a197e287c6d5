#include "placements.h"

#include <fmt/format.h>

#include <cmath>

namespace stagecraft::detail {
namespace {

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

}  // namespace

std::vector<Placement> placements_of(const PlanRequest& request) {
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

}  // namespace stagecraft::detail
