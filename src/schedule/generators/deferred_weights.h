#pragma once

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::detail {

/// One rank of a linear zero-bubble schedule: `warm_up` forwards, then F and I in turn while forwards remain. The
/// oldest pending W follows each I from number `delay` (counted from 0) on; the remaining Ws come last.
inline Row with_deferred_weights(StageId stage, int warm_up, int delay, int microbatches) {
  Row row;
  row.reserve(3 * static_cast<std::size_t>(microbatches));
  int forwards = 0;
  int weights = 0;
  while (forwards < warm_up) row.push_back(Action::forward(stage, MicrobatchId(forwards++)));
  for (int m = 0; m < microbatches; ++m) {
    if (forwards < microbatches) row.push_back(Action::forward(stage, MicrobatchId(forwards++)));
    row.push_back(Action::backward_input(stage, MicrobatchId(m)));
    if (m >= delay) row.push_back(Action::backward_weight(stage, MicrobatchId(weights++)));
  }
  while (weights < microbatches) row.push_back(Action::backward_weight(stage, MicrobatchId(weights++)));
  return row;
}

}  // namespace stagecraft::detail
