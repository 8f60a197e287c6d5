#pragma once

#include <vector>

#include "stagecraft/runtime/precision.h"
#include "stagecraft/runtime/world.h"

namespace stagecraft {

/// The scale of losses computed in float16. Gradients are ready to be used after `unscale`, once per update.
class LossScaler {
 public:
  explicit LossScaler(const LossScaling& options) : options_(options), state_{options.initial, 0} {}

  [[nodiscard]] const LossScalingState& state() const { return state_; }
  void set_state(const LossScalingState& state) { state_ = state; }

  /// Called by all ranks, with what their optimizers update: divides the gradients by the scale, and changes the scale
  /// if it is time. Returns whether the gradients of all ranks are finite.
  bool unscale(World& world, const std::vector<at::Tensor>& parameters);

  // Between the last step of an update and `unscale`, gradients wait.
  void set_waiting(bool waiting) { waits_ = waiting; }
  /// Throws InvalidArgument with `what` cannot be done, if gradients wait.
  void require_unscaled(const char* what) const;

 private:
  LossScaling options_;
  LossScalingState state_;
  bool waits_ = false;
};

}  // namespace stagecraft
