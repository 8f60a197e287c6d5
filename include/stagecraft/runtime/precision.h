#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// float16 has a small range: small gradients become 0. So losses are multiplied by a scale, and gradients divided by
/// it (see Pipeline::unscale_gradients). The scale falls after an overflow, and grows after some updates without one.
struct LossScaling {
  double initial = 65536;
  double growth = 2;
  double backoff = 0.5;
  int growth_interval = 2000;
};

/// The scale of losses at a time; saved in checkpoints.
struct LossScalingState {
  double scale = 1;
  std::int64_t updates = 0;  ///< Without an overflow, since the scale last changed.
};

/// Floating-point types of a pipeline; by default all that the modules have. If any but `autocast` and `scaling` is
/// given, the optimizer must be made from Pipeline::parameters. See docs/design/precision.md.
struct Precision {
  /// Modules compute with copies of the parameters in this type, such as at::kBFloat16 or at::kHalf, and get the
  /// floating-point inputs of a step in it. The loss function gets the last stage's output as float32. Gradients of
  /// microbatches are added up in the type of the parameters. Buffers stay as they are.
  std::optional<at::ScalarType> compute = {};
  /// Parameters that `compute` leaves as they are; patterns of names ("*.norm.*").
  std::vector<std::string> keep = {};
  /// The type of Pipeline::parameters, if it is not that of the modules: at::kFloat for a model stored in bfloat16.
  std::optional<at::ScalarType> parameters = {};
  /// Forwards and losses run under LibTorch's autocast with this type. Not together with `compute`.
  std::optional<at::ScalarType> autocast = {};
  /// The type in which gradients are sent between replicas. They are added up in float32 or wider in any case.
  std::optional<at::ScalarType> reduce = {};
  /// With float16, which has it even if it is not given.
  std::optional<LossScaling> scaling = {};

  /// Whether parameters of the modules are made from others.
  [[nodiscard]] bool has_masters() const { return compute || parameters || reduce; }
  /// Whether tensors between stages may be of other types than the modules were made with.
  [[nodiscard]] bool changes_types() const { return compute || autocast; }
  [[nodiscard]] bool is_half() const { return compute == at::kHalf || autocast == at::kHalf; }
};

}  // namespace stagecraft
