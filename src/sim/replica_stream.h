#pragma once

#include <vector>

#include "stagecraft/sim/simulator.h"

/// What a rank does beside compute when it has replicas.
namespace stagecraft::detail {

/// A change of a rank's memory; `what` is one of MemoryParts.
struct MemoryChange {
  double time = 0;
  double amount = 0;
  double MemoryParts::*what = nullptr;
};

/// The communication stream of one rank: UNSHARDs and REDUCE_GRADs, one after the other, each started by the rank's
/// compute stream. Times that are passed in do not descend.
class ReplicaStream {
 public:
  /// Keeps references.
  ReplicaStream(const Costs& costs, const Placement& placement, RankId rank);

  /// The actions, at the time and in the slot of the compute stream. `factor` is that of the jitter. UNSHARD and
  /// REDUCE_GRAD return when they communicate, RESHARD when the compute stream goes on.
  ActionTime unshard(StageId stage, double now, std::size_t slot, double factor);
  double reshard(StageId stage, double now, std::size_t slot);
  ActionTime reduce(StageId stage, double now, double factor);

  /// When the stage's parameters are whole. Gathers them if nobody has.
  double whole_at(StageId stage, double now, std::size_t slot, double factor);
  /// The compute stream has waited that long.
  void add_exposed(double time) { exposed_ += time; }
  /// The end of the rank's step: reduces the stages that no action has reduced. Returns when all is done.
  double finish(double now, bool training);

  [[nodiscard]] double communication() const { return communication_; }
  [[nodiscard]] double exposed() const { return exposed_; }

  /// A change that the compute stream makes before the compute of that slot.
  struct SlotChange {
    std::size_t slot;
    MemoryChange change;
  };
  [[nodiscard]] const std::vector<SlotChange>& in_slots() const { return in_slots_; }
  /// Changes by the communication itself, in order of time.
  [[nodiscard]] const std::vector<MemoryChange>& beside() const { return beside_; }

 private:
  struct StageState {
    bool is_stale = true;  // the parameters are not those of the masters, or have no memory
    double ready = 0;
    bool is_reduced = false;
  };

  [[nodiscard]] StageState& state(StageId stage) {
    return states_[static_cast<std::size_t>(placement_.local_index(stage))];
  }
  [[nodiscard]] double transfer(double memory, double given, double passes) const;
  ActionTime communicate(double now, double time);

  const Costs& costs_;
  const Placement& placement_;
  RankId rank_;
  std::vector<StageState> states_;
  double free_ = 0;  // when the last communication ends
  double communication_ = 0;
  double exposed_ = 0;
  std::vector<SlotChange> in_slots_;
  std::vector<MemoryChange> beside_;
};

}  // namespace stagecraft::detail
