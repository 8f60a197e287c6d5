#pragma once

#include <span>

#include "stagecraft/schedule/generator.h"

namespace stagecraft::detail {

/// A schedule whose rows are made one by one: `make_row(rank, stages)` gets the rank's number and its stages,
/// ascending.
template <typename MakeRow>
Schedule by_rank(const Shape& shape, Placement placement, MakeRow&& make_row) {
  Schedule schedule{"", std::move(placement), shape.microbatches, {}};
  schedule.rows.reserve(static_cast<std::size_t>(shape.ranks));
  for (int r = 0; r < shape.ranks; ++r) {
    schedule.rows.push_back(make_row(r, schedule.placement.stages_of(RankId(r))));
  }
  return schedule;
}

}  // namespace stagecraft::detail
