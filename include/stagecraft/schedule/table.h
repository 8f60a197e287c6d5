#pragma once

#include <climits>
#include <iosfwd>
#include <optional>
#include <vector>

#include "stagecraft/schedule/schedule.h"

/// A schedule as a table for people: one line per step, one column per rank.
///
///             Rank 0  Rank 1
///     Step 0: 0F0
///     Step 1: 0F1     1F0
///     Step 2:         1B0  <-- here: rank 1
namespace stagecraft {

/// A slot of the table that deserves attention.
struct TableMark {
  RankId rank;
  int step = 0;
};

struct TableOptions {
  /// ANSI colour by kind of action.
  bool colour = false;
  /// Terminal columns to fit; a wider table is cut into blocks of ranks, one rank at least in each. 0 means no limit.
  int width = 0;
  /// The part to show; what lies outside the table is ignored.
  int first_step = 0;
  int end_step = INT_MAX;
  int first_rank = 0;
  int end_rank = INT_MAX;
  /// The line of this slot ends in a remark. A slot outside the part shown is not marked.
  std::optional<TableMark> mark = std::nullopt;
};

/// Slots are drawn as they stand. Steps are padded to the width of the last step of the whole table, so that an excerpt
/// reads like a piece of it. Rows may differ in length; a block of ranks ends with its longest row. No line has
/// trailing blanks. Takes time in proportion to the slots shown and the text written.
void write_table(std::ostream& out, const std::vector<Row>& rows, const TableOptions& options = {});

}  // namespace stagecraft
