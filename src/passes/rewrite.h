#pragma once

#include "stagecraft/core/in_parts.h"
#include "stagecraft/passes/pass.h"
#include "well_formed.h"

/// A pass and what it asks of a schedule, apart from each other: a chain of passes checks the schedule once.
namespace stagecraft::detail {

struct Rewrite {
  Pass pass;
  KindSet refuses = 0;           ///< Kinds that must not stand in the schedule yet.
  std::string_view remedy = {};  ///< Said when one does.
  /// The schedule is well formed and has none of the refused kinds; it is well formed afterwards.
  void (*apply)(Schedule&) = nullptr;
};

extern const Rewrite merge_backward_rewrite;
extern const Rewrite unshard_reshard_rewrite;
extern const Rewrite reduce_grad_rewrite;
extern const Rewrite send_recv_rewrite;
extern const Rewrite defer_receives_rewrite;
extern const Rewrite place_receives_rewrite;

/// For what a pass does to each row by itself: `work(rank)` for every rank, on all cores where there is enough to do.
template <typename Work>
void for_each_rank(const Schedule& schedule, const Work& work) {
  in_parts(schedule.rows.size(), schedule.slots(), [&](std::size_t begin, std::size_t end) {
    for (std::size_t r = begin; r < end; ++r) work(r);
  });
}

/// Throws ScheduleError unless the schedule is well formed and has none of the refused kinds.
void require_input_of(const Rewrite& rewrite, const Schedule& schedule);

/// Checks, then rewrites.
void run(const Rewrite& rewrite, Schedule& schedule);

}  // namespace stagecraft::detail
