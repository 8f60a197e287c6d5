#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace stagecraft {

/// The results, as if they had been computed from the operands too, with a gradient of zero: autograd of an exported
/// program gives every operand of control flow a gradient, also one that only a branch uses which did not run. An
/// optimizer tells no gradient from a gradient of zero: it decays the weight with the second.
void add_zero_gradients(std::vector<c10::IValue>& results, const std::vector<at::Tensor>& operands);

}  // namespace stagecraft
