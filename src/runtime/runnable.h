#pragma once

#include <string>
#include <vector>

#include "program.h"

namespace stagecraft {

/// A schedule ready to be executed on one rank.
struct Runnable {
  Schedule schedule;  // lowered and verified
  Program program;
  /// Places of the rank's stages, in the order in which their gradients are complete.
  std::vector<std::size_t> completion_order;
  /// Those of them that the schedule does not reduce, in the same order.
  std::vector<std::size_t> never_reduced;
};

/// Lowers a compute-only schedule with `passes`; one that is lowered stays as it is. Throws ScheduleError when it must
/// not run.
Runnable make_runnable(Schedule schedule, const std::string& passes, RankId rank);

/// Whether it has any backward.
bool trains(const Schedule& schedule);

}  // namespace stagecraft
