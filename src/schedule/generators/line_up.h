#pragma once

#include "stagecraft/schedule/schedule.h"

/// Puts the rows of a compute-only schedule on a common clock of one slot per action, by inserting idle slots:
/// afterwards everything an action needs from another rank stands in an earlier slot. The order within each row stays.
namespace stagecraft::detail {

void line_up(Schedule& schedule);

/// The same for rows of F and I alone, while putting each W where its rank would otherwise idle, or where `live_limit`
/// activations leave no room for the next F. The rows must need no more than `live_limit` when every W is done at once.
void line_up_with_weights(Schedule& schedule, int live_limit);

}  // namespace stagecraft::detail
