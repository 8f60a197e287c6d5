#pragma once

namespace stagecraft {

/// What the replicas of a rank share among them instead of holding copies.
enum class Shard {
  kNone,        ///< Nothing: every replica holds everything.
  kOptimizer,   ///< The state of the optimizer.
  kGradients,   ///< Also the gradients.
  kParameters,  ///< Also the parameters: those of a stage are whole only while the schedule needs them.
};

}  // namespace stagecraft
