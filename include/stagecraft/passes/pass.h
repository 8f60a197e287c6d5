#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/schedule/schedule.h"

/// Lowering: passes that turn a compute-only schedule into one a runtime can execute. Each rewrites the schedule in
/// place and composes with the others by name, as in a compiler. A pass that throws ScheduleError leaves the schedule
/// unspecified.
namespace stagecraft {

/// An I immediately followed by the W of the same stage and microbatch becomes one B. Idle slots vanish.
void merge_backward(Schedule& schedule);

/// Surrounds compute with UNSHARD and RESHARD so that at most `max_active` stages of a rank are gathered at a time (one
/// more around an overlap), each early enough to prefetch. Idle slots vanish. Compute-only input.
inline constexpr int kDefaultMaxActive = 3;
void unshard_reshard(Schedule& schedule, int max_active = kDefaultMaxActive);

/// REDUCE_GRAD right after the action that completes a stage's last weight gradient. Idle slots vanish.
void reduce_grad(Schedule& schedule);

/// SEND after each action whose neighbour stage lives on another rank, and the RECV on that rank at the same moment of
/// one global order, which is why the result cannot deadlock even under blocking sends. Idle slots vanish.
void send_recv(Schedule& schedule);

/// Moves each RECV to just before its consumer, or before the next SEND to the same higher rank. Needs a transport with
/// tags: the order of messages between two ranks may change.
void defer_receives(Schedule& schedule);

/// Moves each RECV as late as it delays neither its consumer nor its sender, and keeps every pair of ranks in one order
/// at both ends: safe on every transport.
void place_receives(Schedule& schedule);

struct Pass {
  std::string_view name;
  std::string_view summary;
};

/// All passes, in the order they are usually applied.
std::span<const Pass> passes();

/// Throws InvalidArgument that lists the known names.
const Pass& find_pass(std::string_view name);

/// PyTorch's lowering.
inline constexpr std::string_view kDefaultLowering = "unshard_reshard,reduce_grad,send_recv";

/// Runs the passes of a comma-separated list, left to right; an empty list runs none. Every name is looked up before
/// the first pass runs.
void run_passes(Schedule& schedule, std::string_view names = kDefaultLowering);

}  // namespace stagecraft
