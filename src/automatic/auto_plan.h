#pragma once

#include <string>
#include <vector>

#include "stagecraft/automatic/automatic.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/timeline.h"

namespace stagecraft {

/// What rank 0 finds, and tells the others.
struct AutoPlan {
  std::string csv;  ///< Compute-only; empty when nothing is better than the schedule at the beginning.
  std::string name;
  Costs costs;
  double predicted_before = 0;
  double predicted_after = 0;
};

/// The largest number of activations that a rank may hold, from what the user says and what the starting schedule does.
/// Throws InvalidArgument when no schedule can keep it.
double auto_memory_limit(const AutoOptions& options, const Schedule& starting);

/// Profiles and plans. The shortest step is looked for among the planner's schedule, every known one for this
/// placement, and the starting one: ranks meet at the end of each step, so makespans count, not spans.
AutoPlan find_plan(const std::vector<Recording>& recordings, const Schedule& starting, double memory_limit,
                   const AutoOptions& options, const std::string& passes);

std::string to_text(const AutoPlan& plan);
AutoPlan to_auto_plan(const std::string& text);

}  // namespace stagecraft
