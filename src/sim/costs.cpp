#include "stagecraft/sim/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stagecraft/core/error.h"

namespace stagecraft {

std::string_view shard_name(Shard shard) {
  static constexpr std::array<std::string_view, 4> kNames = {"none", "optimizer", "gradients", "parameters"};
  return kNames.at(static_cast<std::size_t>(shard));
}

std::string memory_text(const Costs& costs, double memory) {
  if (!costs.memory_in_bytes) return fmt::format("{:g}", memory);
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  for (; std::abs(memory) >= 1024 && unit + 1 < kUnits.size(); ++unit) memory /= 1024;
  return fmt::format("{:.{}f} {}", memory, unit == 0 ? 0 : 2, kUnits[unit]);
}

bool Costs::has_more_than_activations() const {
  return memory_in_bytes || replicas > 1 || std::any_of(stages.begin(), stages.end(), [](const StageCosts& stage) {
           return stage.recompute || stage.parameter_memory > 0 || stage.master_memory > 0 ||
                  stage.gradient_memory > 0 || stage.optimizer_memory > 0;
         });
}

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
  if (costs.replicas < 1) complain(fmt::format("costs: replicas is at least 1, got {}", costs.replicas));
  if (costs.shard != Shard::kNone && costs.replicas == 1) {
    complain(
        fmt::format("costs: shard is {}, which says what replicas share, but there is only one: give replicas, or "
                    "leave shard out",
                    shard_name(costs.shard)));
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
