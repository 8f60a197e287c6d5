#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stagecraft/core/text.h"
#include "stagecraft/file/safetensors.h"

namespace stagecraft::safetensors {

/// Bytes of a tensor; none when the number overflows, a size is negative, or the bits are not whole bytes.
std::optional<std::uint64_t> bytes_of(std::string_view dtype, const std::vector<std::int64_t>& shape);

/// "[2, 3]".
std::string shape_text(const std::vector<std::int64_t>& shape);

/// The start of a file: length and padded header. Sets `begin` and `bytes` of each entry, one after the other. Writes a
/// checksum that is not known yet as 0, so that the length of the header does not change.
std::string written_header(std::vector<Entry>& entries, const Metadata& metadata);

/// Moves the checksums from the metadata into the entries. Adds a fault for each one that is missing or belongs to no
/// tensor, or if that of the header does not match. Does nothing without checksums.
void take_checksums(Header& header, Faults& faults);
/// Adds the checksums to the metadata, for `take_checksums`. Throws InvalidArgument if the metadata uses their names.
void add_checksums(const std::vector<Entry>& entries, Metadata& metadata);

}  // namespace stagecraft::safetensors
