#pragma once

#include <span>

#include "stagecraft/core/in_parts.h"
#include "stagecraft/schedule/generator.h"

namespace stagecraft::detail {

/// Makes a schedule row by row: `make_row(rank, stages)` gets the rank's number and its stages, ascending. Rows are
/// made in parallel, so they must not depend on each other.
template <typename MakeRow>
Schedule by_rank(const Shape& shape, Placement placement, MakeRow&& make_row) {
  Schedule schedule{"", std::move(placement), shape.microbatches, {}};
  schedule.rows.resize(static_cast<std::size_t>(shape.ranks));
  const auto size = 2 * static_cast<std::size_t>(schedule.stages()) * static_cast<std::size_t>(shape.microbatches);
  in_parts(schedule.rows.size(), size, [&](std::size_t begin, std::size_t end) {
    for (std::size_t r = begin; r < end; ++r) {
      schedule.rows[r] = make_row(static_cast<int>(r), schedule.placement.stages_of(RankId(r)));
    }
  });
  return schedule;
}

}  // namespace stagecraft::detail
