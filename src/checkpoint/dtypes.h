#pragma once

#include <c10/core/ScalarType.h>

#include <string>

namespace stagecraft {

/// As safetensors files call it; empty for a type that they do not have.
std::string dtype_name(at::ScalarType type);

}  // namespace stagecraft
