#pragma once

#include <vector>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/costs.h"

/// Exact times and memory of a schedule under given costs.
namespace stagecraft {

struct ActionTime {
  double start = 0;
  double end = 0;
};

struct MemoryPoint {
  double time = 0;
  double memory = 0;  ///< From this time on.
};

struct RankOutcome {
  double first_start = 0;  ///< Of its first compute.
  double last_end = 0;     ///< Of its last compute; the optimizer comes after.
  double busy = 0;         ///< Time of computing between the two.
  double end = 0;          ///< Of everything, the optimizer included.
  double peak_memory = 0;
  [[nodiscard]] double span() const { return last_end - first_start; }
};

struct Simulation {
  std::vector<RankOutcome> ranks;
  /// From time 0 to the end of the last rank.
  double makespan = 0;
  /// The largest span of any rank, from its first F to its last W: optimizers being per rank, ranks may start and end
  /// one after the other without loss.
  double span = 0;

  /// The part of `ranks * span` and of `ranks * makespan` in which ranks do not compute.
  [[nodiscard]] double bubble_span() const;
  [[nodiscard]] double bubble_makespan() const;
  [[nodiscard]] double peak_memory() const;

  /// Per rank and slot; an idle slot has start == end. Empty unless asked for.
  std::vector<std::vector<ActionTime>> times;
  /// Per rank, in the order of time; empty unless asked for.
  std::vector<std::vector<MemoryPoint>> memory;
};

struct SimulationOptions {
  bool keep_times = false;
  bool keep_memory = false;
  /// Each compute takes max(0, 1 + jitter * x) times its cost, x drawn from a normal distribution by `seed`.
  double jitter = 0;
  std::uint64_t seed = 0;
};

/// Each rank does its actions in their order on one compute stream; an action starts once the one before has ended and
/// its message has arrived. A compute-only schedule sends at the end of the compute, a lowered one where its SEND
/// stands; posting a SEND or a RECV takes no time, and idle slots are dropped. Memory grows when an action starts and
/// shrinks when it ends. Linear in the number of actions. Throws ScheduleError for a schedule that cannot run,
/// InvalidArgument for costs that do not fit it.
Simulation simulate(const Schedule& schedule, const Costs& costs, const SimulationOptions& options = {});

}  // namespace stagecraft
