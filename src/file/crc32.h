#pragma once

#include <cstddef>
#include <cstdint>

namespace stagecraft {

/// The CRC-32 of zip archives. `so_far`: of the bytes before these, 0 at the beginning.
std::uint32_t crc32(const void* bytes, std::size_t size, std::uint32_t so_far = 0);

}  // namespace stagecraft
