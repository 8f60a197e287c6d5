#pragma once

#include <algorithm>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::detail {

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

}  // namespace stagecraft::detail
