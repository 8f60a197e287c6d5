#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stagecraft/core/faults.h"
#include "stagecraft/file/safetensors.h"

namespace stagecraft::safetensors {

/// Bytes of a tensor; none when they are too many to count, or not whole.
std::optional<std::uint64_t> bytes_of(std::string_view dtype, const std::vector<std::int64_t>& shape);

/// "[2, 3]".
std::string shape_text(const std::vector<std::int64_t>& shape);

/// The start of a file: length and header, padded. Sets where each entry begins, and its bytes; entries lie one after
/// the other. A checksum that is not known yet is written as 0, so that the length never changes.
std::string written_header(std::vector<Entry>& entries, const Metadata& metadata);

/// Moves the checksums from the metadata into the entries, and adds what is wrong with them: one is missing, is of no
/// tensor, or the one of the header is not that of the rest. Without any there is nothing to do.
void take_checksums(Header& header, Faults& faults);
/// Adds them to the metadata, as `take_checksums` takes them. Throws InvalidArgument for metadata of the same names.
void add_checksums(const std::vector<Entry>& entries, Metadata& metadata);

}  // namespace stagecraft::safetensors
