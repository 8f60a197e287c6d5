#pragma once

#include <string>
#include <vector>

#include "stagecraft/automatic/automatic.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/timeline.h"

namespace stagecraft {

/// The plan that rank 0 finds and sends to the others.
struct AutoPlan {
  std::string csv;  ///< The compute-only schedule; empty when nothing is better than the starting one.
  std::string name;
  Costs costs;
  double predicted_before = 0;
  double predicted_after = 0;
};

/// The largest number of live activations that a rank may hold, from the options or, by default, from the starting
/// schedule. Throws InvalidArgument when no schedule can keep the limit.
double auto_memory_limit(const AutoOptions& options, const Schedule& starting);

/// Computes costs from the recordings and finds the schedule with the shortest step among the planner's, every known
/// one for this placement, and the starting one. Compares makespans, not spans, because ranks meet at the end of each
/// step.
AutoPlan find_plan(const std::vector<Recording>& recordings, const Schedule& starting, double memory_limit,
                   const AutoOptions& options, const std::string& passes);

std::string to_text(const AutoPlan& plan);
AutoPlan to_auto_plan(const std::string& text);

}  // namespace stagecraft
