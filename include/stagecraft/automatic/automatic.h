#pragma once

#include <string>

#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/sim/costs.h"

/// `.schedule = "auto"`: a pipeline that finds its schedule while it trains. It is a layer above the runtime, which
/// does not know the planner: including this header registers "auto".
namespace stagecraft {

/// The state of `.schedule = "auto"`, the same on all ranks. Times are seconds per step.
struct AutoReport {
  enum class Phase {
    kProfiling,  ///< Steps of the starting schedule are recorded.
    kComparing,  ///< Steps of the plan and of the starting schedule are measured in turn.
    kDecided,
  };
  Phase phase = Phase::kProfiling;
  std::string starting;   ///< Name of the starting schedule.
  std::string planned;    ///< "planned", or the name of a known schedule that nothing could beat.
  bool switched = false;  ///< Whether the planned schedule was chosen.
  double memory_limit = 0;
  Costs costs;  ///< Measured costs, in seconds.
  double predicted_before = 0;
  double predicted_after = 0;
  double measured_before = 0;
  double measured_after = 0;  ///< 0 when the starting schedule was the best plan.

  /// The part of a step's time that is saved: 0.1 for a tenth.
  [[nodiscard]] double predicted_gain() const { return gain(predicted_before, predicted_after); }
  [[nodiscard]] double measured_gain() const { return gain(measured_before, measured_after); }
  /// The report as one line.
  [[nodiscard]] std::string text() const;

 private:
  static double gain(double before, double after) { return before > 0 && after > 0 ? 1 - after / before : 0; }
};

/// Throws InvalidArgument for a pipeline without schedule "auto".
const AutoReport& auto_report(const Pipeline& pipeline);

namespace detail {
bool register_autopilot();
inline const bool is_autopilot_registered = register_autopilot();
}  // namespace detail

}  // namespace stagecraft
