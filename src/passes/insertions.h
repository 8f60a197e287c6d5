#pragma once

#include <algorithm>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::detail {

/// An action that a pass puts into a row.
struct Insertion {
  std::size_t before;  ///< Which action of the row as it is; its size means at the end.
  Action action;
};

/// `insertions` stand in the order of the row. The gaps are opened from the back: every action moves at most once,
/// those before the first gap not at all, and the row keeps its memory where it has the room.
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
