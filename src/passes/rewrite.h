#pragma once

#include "stagecraft/core/in_parts.h"
#include "stagecraft/passes/pass.h"
#include "well_formed.h"

/// A pass with its preconditions as data, so that a chain of passes checks the schedule only once.
namespace stagecraft::detail {

struct Rewrite {
  Pass pass;
  KindSet refuses = 0;           ///< Kinds of action that the schedule must not contain yet.
  std::string_view remedy = {};  ///< Part of the error message when it does.
  /// Requires a well-formed schedule without the refused kinds, and keeps it well formed.
  void (*apply)(Schedule&) = nullptr;
};

extern const Rewrite merge_backward_rewrite;
extern const Rewrite unshard_reshard_rewrite;
extern const Rewrite reduce_grad_rewrite;
extern const Rewrite send_recv_rewrite;
extern const Rewrite defer_receives_rewrite;
extern const Rewrite place_receives_rewrite;

/// Calls `work(rank)` for every rank, in parallel for large schedules. `work` must not touch the rows of other ranks.
template <typename Work>
void for_each_rank(const Schedule& schedule, const Work& work) {
  in_parts(schedule.rows.size(), schedule.slots(), [&](std::size_t begin, std::size_t end) {
    for (std::size_t r = begin; r < end; ++r) work(r);
  });
}

/// Throws ScheduleError unless the schedule is well formed and has none of the refused kinds.
void require_input_of(const Rewrite& rewrite, const Schedule& schedule);

/// Calls `require_input_of`, then applies the pass.
void run(const Rewrite& rewrite, Schedule& schedule);

}  // namespace stagecraft::detail
