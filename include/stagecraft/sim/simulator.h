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
  double memory = 0;  ///< Memory held from this time on.
};

/// Memory of a rank, by what it holds.
struct MemoryParts {
  double parameters = 0;  ///< Also the masters that they are made from.
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;  ///< Also messages that wait.
  [[nodiscard]] double total() const { return parameters + gradients + optimizer + activations; }
};

struct RankOutcome {
  double first_start = 0;  ///< Start of its first compute.
  double last_end = 0;     ///< End of its last compute, before the optimizer.
  double busy = 0;         ///< Compute time between the two.
  double end = 0;          ///< End of all its work, including the optimizer.
  double peak_memory = 0;
  MemoryParts at_peak;       ///< What the rank holds when it first holds the most.
  double communication = 0;  ///< With replicas: time of its UNSHARDs and REDUCE_GRADs, beside compute.
  double exposed = 0;        ///< The part of it that the rank waits for.
  [[nodiscard]] double span() const { return last_end - first_start; }
};

struct Simulation {
  std::vector<RankOutcome> ranks;
  /// From time 0 to the end of the last rank, its reductions and optimizer included.
  double makespan = 0;
  /// The largest span of any rank, from its first F to its last W. Optimizers run per rank, so ranks that start and end
  /// at different times lose nothing.
  double span = 0;

  /// The fraction of `ranks * span` and of `ranks * makespan` in which ranks do not compute.
  [[nodiscard]] double bubble_span() const;
  [[nodiscard]] double bubble_makespan() const;
  [[nodiscard]] double peak_memory() const;
  /// The fraction of the ranks' communication between replicas that overlaps with compute; 1 if there is none.
  [[nodiscard]] double hidden_communication() const;

  /// Per rank and slot; an idle slot has start == end. UNSHARD and REDUCE_GRAD may overlap with the slots around them
  /// if there are replicas. Empty without `keep_times`.
  std::vector<std::vector<ActionTime>> times;
  /// With replicas, per rank and slot: for how long the action waited for its parameters, after its messages were there
  /// and just before its start. Empty without `keep_times`.
  std::vector<std::vector<double>> parameter_waits;
  /// Per rank, in order of time. Empty without `keep_memory`.
  std::vector<std::vector<MemoryPoint>> memory;
};

struct SimulationOptions {
  bool keep_times = false;
  bool keep_memory = false;
  /// Each action takes max(0, 1 + jitter * x) times its cost, with x from a standard normal distribution (see `seed`).
  double jitter = 0;
  std::uint64_t seed = 0;
};

/// Runs each rank's actions in order on one compute stream. An action starts once the previous one has ended and its
/// message has arrived. A compute-only schedule sends at the end of each compute, a lowered one at its SENDs; posting a
/// SEND or a RECV takes no time, nor do idle slots. Memory grows when an action starts and shrinks when it ends. Takes
/// time linear in the number of actions.
///
/// With replicas, UNSHARD and REDUCE_GRAD run one after the other on a second stream of the rank; an action waits for
/// the UNSHARD of its stage, and the rank ends when its last REDUCE_GRAD does. A compute-only schedule gets these
/// actions as the runtime's default passes insert them; its times are those of the slots it has. In a lowered schedule
/// without them, stages are gathered when they are first used, and reduced at the end. See docs/design/memory_model.md.
///
/// Throws ScheduleError for a schedule that cannot run, InvalidArgument for costs that do not fit it.
Simulation simulate(const Schedule& schedule, const Costs& costs, const SimulationOptions& options = {});

/// Per rank, the largest number of live microbatch-stage activations. An activation is live from its F to its B or W;
/// in a row without backwards, only during its F. The count depends only on the order of the rank's own row.
std::vector<int> peak_live_activations(const Schedule& schedule);

}  // namespace stagecraft
