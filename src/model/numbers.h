#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>
#include <vector>

/// Arithmetic on sizes, with Python's rules.
namespace stagecraft {

/// An operation on integers, reals and bools.
using NumberOperation = c10::IValue (*)(const std::vector<c10::IValue>& operands);

/// "_operator.floordiv", "torch.sym_max", "math.ceil", ...; null when there is no such operation.
NumberOperation find_number_operation(std::string_view target);

}  // namespace stagecraft
