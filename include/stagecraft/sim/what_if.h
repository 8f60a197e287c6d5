#pragma once

#include "stagecraft/sim/simulator.h"

/// Costs with a slower rank or link, with replicas or recompute, and simulations with jitter.
namespace stagecraft {

/// The costs with one rank `factor` times slower. Throws InvalidArgument unless the rank exists and the factor is
/// finite and above 0.
Costs with_slower_rank(const Costs& costs, int ranks, RankId rank, double factor);

/// The costs with the links between two ranks, in both directions, `factor` times slower in latency and bandwidth.
/// Throws InvalidArgument unless the ranks exist and differ, and the factor is finite and above 0.
Costs with_slower_link(const Costs& costs, int ranks, RankId a, RankId b, double factor);

/// The costs with so many replicas that share what `shard` says. Throws InvalidArgument for a number below 1, and for
/// something to share with one replica.
Costs with_replicas(const Costs& costs, int replicas, Shard shard);

/// The costs with all stages computed again, or none. Throws InvalidArgument when no stage says what it would keep
/// (`input_memory`).
Costs with_recompute(const Costs& costs, bool recompute);

struct JitterOutcome {
  int runs = 0;
  double median_makespan = 0;
  double p95_makespan = 0;
  double median_span = 0;
  double p95_span = 0;
};

inline constexpr int kMostJitterRuns = 1'000'000;

/// Runs `runs` simulations with random durations; `jitter` is their standard deviation relative to the cost. The same
/// seed gives the same outcome. Throws InvalidArgument unless 0 <= jitter <= 1 and 1 <= runs <= kMostJitterRuns.
JitterOutcome simulate_jitter(const Schedule& schedule, const Costs& costs, double jitter, int runs,
                              std::uint64_t seed);

}  // namespace stagecraft
