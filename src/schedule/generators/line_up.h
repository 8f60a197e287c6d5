#pragma once

#include "stagecraft/schedule/schedule.h"

/// Puts the rows of a compute-only schedule on a common clock of one slot per action, by inserting idle slots:
/// afterwards everything that an action needs from another rank is in an earlier slot. Keeps the order of each row.
namespace stagecraft::detail {

void line_up(Schedule& schedule);

/// The same for rows of only F and I; inserts each W where its rank would otherwise idle, which includes waiting
/// because `live_limit` activations are live. The rows must keep `live_limit` if every W follows its I at once.
void line_up_with_weights(Schedule& schedule, int live_limit);

}  // namespace stagecraft::detail
