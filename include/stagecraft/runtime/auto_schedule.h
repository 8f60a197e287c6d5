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
  /// backwards, then old and new schedule, take turns, so that what disturbs the machine disturbs both alike.
  int profile_steps = 5;
  /// Seconds that planning may take; the other ranks wait for it. Below the world's timeout.
  double time_budget = 10;
  /// Most activations of a microbatch in a stage that a rank may hold at once. 0: as many as the fullest rank holds
  /// with the schedule that the pipeline starts with. Infinity: no limit.
  double memory_limit = 0;
  /// Of the search: the same costs and seed give the same schedule.
  std::uint64_t seed = 0;
};

/// Where stages lie when `split` and `stages_here` are asked for "auto": one per rank is linear, two are a V, more are
/// a loop. 0 means one. A pipeline with "auto" itself takes stages where they are.
Placement auto_placement(int ranks, int stages_per_rank);

}  // namespace stagecraft
