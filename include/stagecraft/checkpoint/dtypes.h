#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

/// Converts between LibTorch's types of numbers and the names in safetensors files.
namespace stagecraft {

/// "F32"; empty for a type that the files do not have.
std::string dtype_name(at::ScalarType type);
/// None for a name that LibTorch has no type for.
std::optional<at::ScalarType> dtype_of(std::string_view name);

}  // namespace stagecraft
