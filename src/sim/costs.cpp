#include "stagecraft/sim/costs.h"

#include <fmt/format.h>

#include "stagecraft/core/error.h"

namespace stagecraft {

LinkCosts Costs::between(RankId from, RankId to) const {
  for (const NamedLink& named : links) {
    if (named.from == from && named.to == to) return named.costs;
  }
  return link;
}

void require_fit(const Costs& costs, int stages, int ranks) {
  std::string problems;
  const auto complain = [&](const std::string& text) { problems += (problems.empty() ? "" : "\n") + text; };
  if (costs.stages.size() != 1 && costs.stages.size() != static_cast<std::size_t>(stages)) {
    complain(
        fmt::format("costs: lists by stage have {} entries, but there are {} stages: give one number for all, or {}",
                    costs.stages.size(), stages, stages));
  }
  if (costs.rank_slowdown.size() > 1 && costs.rank_slowdown.size() != static_cast<std::size_t>(ranks)) {
    complain(fmt::format("costs: rank_slowdown has {} entries, but there are {} ranks: give one number for all, or {}",
                         costs.rank_slowdown.size(), ranks, ranks));
  }
  for (const NamedLink& named : costs.links) {
    if (std::max(named.from.value, named.to.value) < ranks) continue;
    complain(fmt::format("costs: links: the link from rank {} to rank {} does not exist, ranks go from 0 to {}",
                         named.from.value, named.to.value, ranks - 1));
  }
  if (!problems.empty()) throw InvalidArgument(problems);
}

ActionCosts::ActionCosts(const Costs& costs, const Placement& placement) : overlap_factor_(costs.overlap_factor) {
  require_fit(costs, placement.stages(), placement.ranks());
  by_stage_.resize(static_cast<std::size_t>(placement.stages()));
  for (int s = 0; s < placement.stages(); ++s) {
    const StageCosts& stage = costs.of(StageId(s));
    const double slowdown = costs.slowdown(placement.rank_of(StageId(s)));
    const auto set = [&](ActionKind kind, double cost) {
      by_stage_[static_cast<std::size_t>(s)][static_cast<std::size_t>(kind)] = slowdown * cost;
    };
    set(ActionKind::kForward, stage.forward);
    set(ActionKind::kBackward, stage.backward);
    set(ActionKind::kBackwardInput, stage.backward_input);
    set(ActionKind::kBackwardWeight, stage.backward_weight);
    set(ActionKind::kUnshard, stage.unshard);
    set(ActionKind::kReduceGrad, stage.reduce_grad);
  }
}

}  // namespace stagecraft
