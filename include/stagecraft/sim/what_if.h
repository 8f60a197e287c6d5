#pragma once

#include "stagecraft/sim/simulator.h"

/// The same schedule under other conditions.
namespace stagecraft {

/// The costs with one rank `factor` times slower. Throws InvalidArgument for a rank that is not there or a factor that
/// is not finite and above 0.
Costs with_slower_rank(const Costs& costs, int ranks, RankId rank, double factor);

/// The costs with the link between two ranks, in both directions, `factor` times slower in latency and bandwidth.
Costs with_slower_link(const Costs& costs, int ranks, RankId a, RankId b, double factor);

struct JitterOutcome {
  int runs = 0;
  double median_makespan = 0;
  double p95_makespan = 0;
  double median_span = 0;
  double p95_span = 0;
};

inline constexpr int kMostJitterRuns = 1'000'000;

/// `runs` simulations whose computes vary by `jitter` (a standard deviation, as a part of each cost). The same seed
/// gives the same outcome. Throws InvalidArgument unless 0 <= jitter <= 1 and 1 <= runs <= kMostJitterRuns.
JitterOutcome simulate_jitter(const Schedule& schedule, const Costs& costs, double jitter, int runs,
                              std::uint64_t seed);

}  // namespace stagecraft
