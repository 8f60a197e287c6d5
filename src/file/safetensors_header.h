#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stagecraft/file/safetensors.h"

namespace stagecraft::safetensors {

/// Bytes of a tensor; none when they are too many to count, or not whole.
std::optional<std::uint64_t> bytes_of(std::string_view dtype, const std::vector<std::int64_t>& shape);

/// "[2, 3]".
std::string shape_text(const std::vector<std::int64_t>& shape);

/// The start of a file: length and header, padded. Sets where each entry begins, and its bytes; entries lie one after
/// the other.
std::string written_header(std::vector<Entry>& entries, const Metadata& metadata);

}  // namespace stagecraft::safetensors
