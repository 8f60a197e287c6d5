#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stagecraft/schedule/placement.h"
#include "stagecraft/sim/costs.h"

/// `.schedule = "auto"`: a pipeline that finds its schedule while it trains.
namespace stagecraft {

/// Case does not matter.
bool is_auto(std::string_view schedule);

struct AutoOptions {
  /// So many steps are recorded with whole backwards, as many with split ones, and as many are measured with each of
  /// the two schedules, the old and the new; one more of each comes first, to warm up. In turns, so that what disturbs
  /// the machine for a while disturbs all alike.
  int profile_steps = 5;
  /// Seconds that planning may take; the other ranks wait for it. Below the world's timeout.
  double time_budget = 10;
  /// Most activations of a microbatch in a stage that a rank may hold at once. 0: as many as the fullest rank holds
  /// with the schedule that the pipeline starts with. Infinity: no limit.
  double memory_limit = 0;
  /// Of the search: the same costs and seed give the same schedule.
  std::uint64_t seed = 0;
};

/// How far `.schedule = "auto"` has come. The same on all ranks. Times are seconds of a step.
struct AutoReport {
  enum class Phase {
    kProfiling,  ///< Steps of the starting schedule are recorded.
    kComparing,  ///< There is a plan, and it is measured beside the starting schedule.
    kDecided,
  };
  Phase phase = Phase::kProfiling;
  std::string starting;   ///< Name of the schedule at the beginning.
  std::string planned;    ///< "planned", or the name of a known schedule that nothing could beat.
  bool switched = false;  ///< Whether the planned one is used from now on.
  double memory_limit = 0;
  Costs costs;  ///< Measured, in seconds.
  double predicted_before = 0;
  double predicted_after = 0;
  double measured_before = 0;
  double measured_after = 0;  ///< 0 when the plan is the starting schedule.

  /// How much of a step's time is saved, 0.1 for a tenth.
  [[nodiscard]] double predicted_gain() const { return gain(predicted_before, predicted_after); }
  [[nodiscard]] double measured_gain() const { return gain(measured_before, measured_after); }
  /// One line.
  [[nodiscard]] std::string text() const;

 private:
  static double gain(double before, double after) { return before > 0 && after > 0 ? 1 - after / before : 0; }
};

/// Where stages lie when `split` and `stages_here` are asked for "auto": one per rank is linear, two are a V, more are
/// a loop. 0 means one. A pipeline with "auto" itself takes stages where they are.
Placement auto_placement(int ranks, int stages_per_rank);

}  // namespace stagecraft
