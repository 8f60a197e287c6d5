#pragma once

#include <climits>
#include <iosfwd>
#include <optional>
#include <vector>

#include "stagecraft/schedule/schedule.h"

/// A schedule as a readable table: one line per step, one column per rank.
///
///             Rank 0  Rank 1
///     Step 0: 0F0
///     Step 1: 0F1     1F0
///     Step 2:         1B0  <-- here: rank 1
namespace stagecraft {

/// A slot of the table to be marked, such as the place of an error.
struct TableMark {
  RankId rank;
  int step = 0;
};

struct TableOptions {
  /// ANSI colour by kind of action.
  bool colour = false;
  /// Terminal width in columns; a wider table is split into blocks of at least one rank each. 0 means no limit.
  int width = 0;
  /// The part of the table to show; ranges may extend beyond the table.
  int first_step = 0;
  int end_step = INT_MAX;
  int first_rank = 0;
  int end_rank = INT_MAX;
  /// Adds a remark to the line of this slot, if the slot is in the part shown.
  std::optional<TableMark> mark = std::nullopt;
};

/// Draws slot i of each row on line i. Step numbers are padded to the width of the last step of the whole table, so
/// that an excerpt is aligned like the whole. Rows may differ in length; a block of ranks ends with its longest row.
/// Writes no trailing blanks. Takes time proportional to the slots shown and the text written.
void write_table(std::ostream& out, const std::vector<Row>& rows, const TableOptions& options = {});

}  // namespace stagecraft
