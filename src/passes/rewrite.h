#pragma once

#include <algorithm>
#include <vector>

#include "stagecraft/core/in_parts.h"
#include "stagecraft/passes/pass.h"
#include "well_formed.h"

/// What passes are made of: a pass with its preconditions as data, so that a chain of passes checks the schedule only
/// once; a loop over the ranks; and insertions into a row.
namespace stagecraft::detail {

struct Rewrite {
  Pass pass;
  KindSet refuses = 0;           ///< Kinds of action that the schedule must not contain yet.
  std::string_view remedy = {};  ///< Part of the error message when it does.
  /// Requires a well-formed schedule without the refused kinds, and keeps it well formed.
  void (*apply)(Schedule&) = nullptr;
  /// The same with a number, for a pass that takes one. Throws InvalidArgument for a number that it cannot take.
  void (*apply_with)(Schedule&, int) = nullptr;
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

/// An action that a pass inserts into a row.
struct Insertion {
  std::size_t before;  ///< Index in the row before any insertion; the row's size means at the end.
  Action action;
};

/// Inserts all `insertions`, which must be sorted by `before`, in linear time: works from the back, so that every
/// action moves at most once. Reallocates the row only when its capacity is too small.
inline void insert_all(Row& row, const std::vector<Insertion>& insertions) {
  const auto at = [&](std::size_t i) { return row.begin() + static_cast<std::ptrdiff_t>(i); };
  std::size_t end = row.size();
  row.resize(row.size() + insertions.size());
  for (std::size_t left = insertions.size(); left > 0; --left) {
    const Insertion& last = insertions[left - 1];
    std::move_backward(at(last.before), at(end), at(end + left));
    row[last.before + left - 1] = last.action;
    end = last.before;
  }
}

/// Throws ScheduleError unless the schedule is well formed and has none of the refused kinds.
void require_input_of(const Rewrite& rewrite, const Schedule& schedule);

/// Calls `require_input_of`, then applies the pass.
void run(const Rewrite& rewrite, Schedule& schedule);

}  // namespace stagecraft::detail
