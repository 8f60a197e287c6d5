#include "placements.h"

#include <fmt/format.h>

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

}  // namespace

std::vector<Placement> placements_of(const PlanRequest& request) {
  const int v = stages_per_rank(request);
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
