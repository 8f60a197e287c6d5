#include "stagecraft/sim/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

void require_rank(RankId rank, int ranks) {
  if (rank.value >= 0 && rank.value < ranks) return;
  throw InvalidArgument(fmt::format("there is no rank {}: ranks go from 0 to {}", rank.value, ranks - 1));
}

void require_factor(double factor) {
  if (std::isfinite(factor) && factor > 0) return;
  throw InvalidArgument(fmt::format("a slowdown of {} is not possible: it must be finite and above 0", factor));
}

LinkCosts slower(LinkCosts link, double factor) {
  return {.latency = link.latency * factor, .bandwidth = link.bandwidth / factor};
}

double quantile(std::vector<double>& sorted, double q) {
  std::sort(sorted.begin(), sorted.end());
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Costs with_slower_rank(const Costs& costs, int ranks, RankId rank, double factor) {
  require_rank(rank, ranks);
  require_factor(factor);
  Costs changed = costs;
  changed.rank_slowdown.clear();
  for (int r = 0; r < ranks; ++r) changed.rank_slowdown.push_back(costs.slowdown(RankId(r)));
  changed.rank_slowdown[rank.index()] *= factor;
  return changed;
}

Costs with_slower_link(const Costs& costs, int ranks, RankId a, RankId b, double factor) {
  require_rank(a, ranks);
  require_rank(b, ranks);
  require_factor(factor);
  if (a == b) throw InvalidArgument(fmt::format("a link joins two different ranks, got {} twice", a.value));
  Costs changed = costs;
  std::erase_if(changed.links, [&](const NamedLink& named) {
    return (named.from == a && named.to == b) || (named.from == b && named.to == a);
  });
  changed.links.push_back({a, b, slower(costs.between(a, b), factor)});
  changed.links.push_back({b, a, slower(costs.between(b, a), factor)});
  return changed;
}

Costs with_replicas(const Costs& costs, int replicas, Shard shard) {
  if (replicas < 1) throw InvalidArgument(fmt::format("there is at least 1 replica, got {}", replicas));
  if (replicas == 1 && shard != Shard::kNone) {
    throw InvalidArgument(
        fmt::format("replicas share {}, but there is only one: give 2 or more, or share nothing", shard_name(shard)));
  }
  Costs changed = costs;
  changed.replicas = replicas;
  changed.shard = shard;
  return changed;
}

Costs with_recompute(const Costs& costs, bool recompute) {
  const bool has_inputs = std::any_of(costs.stages.begin(), costs.stages.end(),
                                      [](const StageCosts& stage) { return stage.input_memory > 0; });
  if (recompute && !has_inputs) {
    throw InvalidArgument(
        "a stage that is computed again keeps its input, and the costs do not say how much memory that takes: give "
        "input_memory");
  }
  Costs changed = costs;
  for (StageCosts& stage : changed.stages) stage.recompute = recompute;
  return changed;
}

JitterOutcome simulate_jitter(const Schedule& schedule, const Costs& costs, double jitter, int runs,
                              std::uint64_t seed) {
  if (!(jitter >= 0 && jitter <= 1)) {
    throw InvalidArgument(
        fmt::format("a jitter of {} is not possible: it is a part of each cost, from 0 to 1", jitter));
  }
  if (runs < 1 || runs > kMostJitterRuns) {
    throw InvalidArgument(fmt::format("jitter takes 1 to {} runs, got {}: a thousand tell the median and the tail well",
                                      kMostJitterRuns, runs));
  }
  std::vector<double> makespans;
  std::vector<double> spans;
  for (int i = 0; i < runs; ++i) {
    // Ranks use consecutive seeds, so the seeds of runs are kMaxRanks apart.
    const std::uint64_t own = seed + static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(kMaxRanks);
    const Simulation simulation = simulate(schedule, costs, {.jitter = jitter, .seed = own});
    makespans.push_back(simulation.makespan);
    spans.push_back(simulation.span);
  }
  return {.runs = runs,
          .median_makespan = quantile(makespans, 0.5),
          .p95_makespan = quantile(makespans, 0.95),
          .median_span = quantile(spans, 0.5),
          .p95_span = quantile(spans, 0.95)};
}

}  // namespace stagecraft
