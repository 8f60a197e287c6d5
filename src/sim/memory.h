#pragma once

#include <limits>

#include "recomputed.h"
#include "replica_stream.h"
#include "stagecraft/schedule/dataflow.h"
#include "stagecraft/sim/simulator.h"

/// The memory of a rank over time, from the times of its actions and of its messages.
namespace stagecraft::detail {

/// Arrival times of messages at the rank of their consumer.
struct Arrivals {
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  explicit Arrivals(const Schedule& schedule) : forward(schedule, kNever), backward(schedule, kNever) {}
  double& of(const Action& send) {
    return (send.kind() == ActionKind::kSendForward ? forward : backward)(send.stage(), send.microbatch());
  }
  [[nodiscard]] double of(const Action& send) const {
    return (send.kind() == ActionKind::kSendForward ? forward : backward)(send.stage(), send.microbatch());
  }

  // Indexed by the sending stage.
  StageMicrobatchTable<double> forward;
  StageMicrobatchTable<double> backward;
};

/// Memory of one rank over time, from its row and times. Returns the peak; fills `curve` unless null.
double replay_memory(const Schedule& schedule, const Costs& costs, const Arrivals& arrivals, RankId rank,
                     const std::vector<ActionTime>& times, std::vector<MemoryPoint>* curve);

/// What the memory of a rank follows from.
struct RankReplay {
  const Schedule& schedule;
  const Costs& costs;
  const Arrivals& arrivals;
  RankId rank;
  const std::vector<ActionTime>& times;
  const Recomputed& recomputed;
  const ReplicaStream* stream;  ///< Null without replicas.
};

/// The same for costs that have more than activations. Returns what the rank holds at its peak.
MemoryParts replay_all_memory(const RankReplay& replay, std::vector<MemoryPoint>* curve);

}  // namespace stagecraft::detail
