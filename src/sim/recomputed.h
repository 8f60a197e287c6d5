#pragma once

#include <algorithm>
#include <optional>

#include "stagecraft/schedule/dataflow.h"
#include "stagecraft/sim/costs.h"

namespace stagecraft::detail {

/// Which microbatches a stage computes again. Not those whose B or I is the rank's next compute after their F.
class Recomputed {
 public:
  Recomputed(const Schedule& schedule, const Costs& costs) {
    if (std::none_of(costs.stages.begin(), costs.stages.end(), [](const StageCosts& s) { return s.recompute; })) return;
    again_.emplace(schedule);
    for (const Row& row : schedule.rows) {
      Action last;
      for (const Action& action : row) {
        for_each_part(action, [&](const Action& part) {
          if (!is_compute(part.kind())) return;
          if (gives_input_gradient(part.kind()) && costs.of(part.stage()).recompute) {
            const bool at_once = last == Action::forward(part.stage(), part.microbatch());
            (*again_)(part.stage(), part.microbatch()) = static_cast<std::uint8_t>(at_once ? 0 : 1);
          }
          last = part;
        });
      }
    }
  }

  [[nodiscard]] bool any() const { return again_.has_value(); }
  /// For an F, B or I.
  [[nodiscard]] bool operator()(const Action& part) const {
    return again_ && (*again_)(part.stage(), part.microbatch()) != 0;
  }

 private:
  std::optional<StageMicrobatchTable<std::uint8_t>> again_;
};

}  // namespace stagecraft::detail
