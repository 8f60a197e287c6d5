#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/schedule/schedule.h"

/// Lowering: passes that turn a compute-only schedule into one that a runtime can execute. Each pass rewrites the
/// schedule in place; `run_passes` runs a list of them by name. A pass that throws ScheduleError leaves the schedule
/// in an unspecified state.
namespace stagecraft {

/// Replaces an I that is immediately followed by its own W with one B. Removes idle slots.
void merge_backward(Schedule& schedule);

/// Inserts UNSHARD and RESHARD so that at most `max_active` stages of a rank are gathered at a time (one more around an
/// overlap), each UNSHARD early enough to be a prefetch. Removes idle slots. Throws ScheduleError unless the schedule
/// is compute-only, InvalidArgument unless `max_active` is at least 1.
inline constexpr int kDefaultMaxActive = 3;
void unshard_reshard(Schedule& schedule, int max_active = kDefaultMaxActive);

/// Inserts REDUCE_GRAD right after the action that completes a stage's last weight gradient. Removes idle slots.
void reduce_grad(Schedule& schedule);

/// Inserts a SEND after each action whose result another rank needs, and its RECV on that rank at the same point of one
/// global order, so that the result cannot deadlock even with blocking sends. Removes idle slots.
void send_recv(Schedule& schedule);

/// Moves each RECV back to just before its consumer, or to just before the next SEND to the rank it receives from if
/// that rank is higher. Needs a transport with tags: the order of messages between two ranks may change.
void defer_receives(Schedule& schedule);

/// Moves each RECV as late as possible without delaying its consumer or its sender. Every pair of ranks sends and
/// receives in the same order, so the result is safe on every transport.
void place_receives(Schedule& schedule);

struct Pass {
  std::string_view name;
  std::string_view summary;
};

/// All passes, in the order they are usually applied.
std::span<const Pass> passes();

/// The pass of a list's entry: a name, or "unshard_reshard=2" with the number of active stages. Throws InvalidArgument
/// that lists the known names, or for a number that the pass does not take.
const Pass& find_pass(std::string_view name);

/// The lowering that PyTorch does.
inline constexpr std::string_view kDefaultLowering = "unshard_reshard,reduce_grad,send_recv";
/// The lowering for sharded parameters: while a stage computes, the next one is gathered.
inline constexpr int kShardedMaxActive = 2;
inline constexpr std::string_view kShardedLowering = "unshard_reshard=2,reduce_grad,send_recv";

/// Runs the passes of a comma-separated list, left to right; an empty list runs none. Throws InvalidArgument for an
/// unknown name before the first pass runs.
void run_passes(Schedule& schedule, std::string_view names = kDefaultLowering);

}  // namespace stagecraft
