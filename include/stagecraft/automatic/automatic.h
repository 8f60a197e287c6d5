#pragma once

#include <string>

#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/sim/costs.h"

/// `.schedule = "auto"`: a pipeline that finds its schedule while it trains. It stands above the runtime, which knows
/// no planner: including this header is what makes "auto" known.
namespace stagecraft {

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

/// Throws InvalidArgument for a pipeline whose schedule is another.
const AutoReport& auto_report(const Pipeline& pipeline);

namespace detail {
bool register_autopilot();
inline const bool is_autopilot_registered = register_autopilot();
}  // namespace detail

}  // namespace stagecraft
