#include "stagecraft/sim/liveness.h"

#include <algorithm>

namespace stagecraft {

std::vector<int> peak_live_activations(const Schedule& schedule) {
  std::vector<int> peaks;
  for (const Row& row : schedule.rows) {
    const bool trains = std::any_of(row.begin(), row.end(), [](const Action& a) {
      return gives_weight_gradient(a.first().kind()) || gives_weight_gradient(a.second().kind());
    });
    int live = 0;
    int peak = 0;
    for (const Action& action : row) {
      // In an overlap, the activations of both halves are live at the same time.
      for_each_part(action, [&](const Action& part) { live += part.kind() == ActionKind::kForward; });
      peak = std::max(peak, live);
      for_each_part(action, [&](const Action& part) {
        live -= gives_weight_gradient(part.kind()) || (!trains && part.kind() == ActionKind::kForward);
      });
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace stagecraft
