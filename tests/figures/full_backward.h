#pragma once

#include "stagecraft/sim/costs.h"

/// Plans with full backwards alone, as 1F1B-I has them: an I that does all the work and leaves nothing to its W.
namespace stagecraft::figures {

inline Costs with_full_backwards(Costs costs) {
  for (StageCosts& stage : costs.stages) {
    stage.backward_input = stage.backward;
    stage.backward_weight = 0;
    stage.weight_gradient_memory = 0;
  }
  return costs;
}

inline Schedule with_full_backwards(Schedule schedule) {
  for (Row& row : schedule.rows) {
    std::erase_if(row, [](const Action& action) { return action.kind() == ActionKind::kBackwardWeight; });
    for (Action& action : row) {
      if (action.kind() == ActionKind::kBackwardInput) action = Action::backward(action.stage(), action.microbatch());
    }
  }
  return schedule;
}

}  // namespace stagecraft::figures
