#pragma once

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::detail {

/// One rank of a 1F1B: `warm_up` forwards, then B and F in turn, then the Bs that remain. 1 <= warm_up <= microbatches.
inline Row warmed_up_1f1b(StageId stage, int warm_up, int microbatches) {
  Row row;
  row.reserve(2 * static_cast<std::size_t>(microbatches));
  for (int m = 0; m < warm_up; ++m) row.push_back(Action::forward(stage, MicrobatchId(m)));
  for (int m = 0; m < microbatches; ++m) {
    row.push_back(Action::backward(stage, MicrobatchId(m)));
    if (warm_up + m < microbatches) row.push_back(Action::forward(stage, MicrobatchId(warm_up + m)));
  }
  return row;
}

}  // namespace stagecraft::detail
