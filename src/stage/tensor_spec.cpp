#include "stagecraft/stage/tensor_spec.h"

#include "stagecraft/core/error.h"

namespace stagecraft {

bool TensorSpec::matches(const at::Tensor& tensor, bool any_float) const {
  if (!tensor.defined()) return false;
  const bool both_float = at::isFloatingType(dtype) && tensor.is_floating_point();
  if (tensor.scalar_type() != dtype && !(any_float && both_float)) return false;
  if (static_cast<std::size_t>(tensor.dim()) != sizes.size()) return false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != kAny && sizes[i] != tensor.size(static_cast<std::int64_t>(i))) return false;
  }
  return true;
}

std::string TensorSpec::text() const {
  std::string text = std::string(c10::toString(dtype)) + " [";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    text += (i > 0 ? ", " : "") + (sizes[i] == kAny ? "any" : std::to_string(sizes[i]));
  }
  return text + "]";
}

void check_tensors(const ValueList& values, const std::vector<TensorSpec>& expected, StageId stage,
                   MicrobatchId microbatch, const char* what, bool any_float) {
  std::size_t count = 0;
  const std::string place =
      "stage " + std::to_string(stage.value) + ", microbatch " + std::to_string(microbatch.value) + ", ";
  for (const Value& value : values) {
    value.for_each_tensor([&](const at::Tensor& tensor) {
      const std::size_t i = count++;
      if (i >= expected.size() || expected[i].matches(tensor, any_float)) return;
      throw ShapeError(place + what + " " + std::to_string(i) + ": expected " + expected[i].text() + ", got " +
                           (tensor.defined() ? TensorSpec::of(tensor).text() : "nothing") +
                           ": change the stage that makes it, or what was declared",
                       stage);
    });
  }
  if (count == expected.size()) return;
  throw ShapeError(
      place + "expected " + std::to_string(expected.size()) + " tensors as " + what + "s, got " + std::to_string(count),
      stage);
}

}  // namespace stagecraft
