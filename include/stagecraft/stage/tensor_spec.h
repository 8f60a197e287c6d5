#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "stagecraft/core/ids.h"
#include "stagecraft/stage/value.h"

/// Type and shape of a tensor between two stages.
namespace stagecraft {

struct TensorSpec {
  static constexpr std::int64_t kAny = -1;

  std::vector<std::int64_t> sizes;  ///< kAny: any size, such as the rows of ragged microbatches.
  at::ScalarType dtype = at::kFloat;

  static TensorSpec of(const at::Tensor& tensor) { return {tensor.sizes().vec(), tensor.scalar_type()}; }
  /// `any_float`: one floating-point type may stand for another.
  [[nodiscard]] bool matches(const at::Tensor& tensor, bool any_float = false) const;
  /// "Float [4, any, 16]".
  [[nodiscard]] std::string text() const;
  bool operator==(const TensorSpec&) const = default;
};

/// Throws ShapeError unless the tensors of `values`, in order, are as expected. `what` is "input" or "output".
void check_tensors(const ValueList& values, const std::vector<TensorSpec>& expected, StageId stage,
                   MicrobatchId microbatch, const char* what, bool any_float = false);

}  // namespace stagecraft
