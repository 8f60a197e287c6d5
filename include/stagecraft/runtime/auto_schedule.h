#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stagecraft/schedule/placement.h"

/// `.schedule = "auto"`: a pipeline that finds its schedule while it trains.
namespace stagecraft {

/// Case does not matter.
bool is_auto(std::string_view schedule);

struct AutoOptions {
  /// Steps per measurement; each form of backward and each schedule gets one warm-up step first. Whole and split
  /// backwards, then old and new schedule, alternate, so that noise of the machine affects both alike.
  int profile_steps = 5;
  /// Seconds that planning may take, while the other ranks wait; less than the world's timeout.
  double time_budget = 10;
  /// The most live activations (of one microbatch in one stage) that a rank may hold. 0: the peak of the schedule that
  /// the pipeline starts with. Infinity: no limit.
  double memory_limit = 0;
  /// Seed of the search: the same costs and seed give the same schedule.
  std::uint64_t seed = 0;
};

/// The placement that `split` and `stages_here` use for "auto": one stage per rank is linear, two are a V, more are a
/// loop. 0 means one. A pipeline with "auto" that is given stages takes them where they are.
Placement auto_placement(int ranks, int stages_per_rank);

}  // namespace stagecraft
