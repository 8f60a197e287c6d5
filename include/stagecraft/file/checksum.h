#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace stagecraft {

/// XXH64 (seed 0) of bytes that come in any pieces: the published hash, so that other programs can compute it too. It
/// tells whether data was damaged by accident, at about the speed of memory on any processor; it is no protection
/// against an attacker.
class Checksum {
 public:
  void add(const void* bytes, std::size_t size);
  /// The sum of all bytes so far.
  [[nodiscard]] std::uint64_t value() const;

 private:
  static constexpr std::size_t kBlock = 32;

  std::array<std::uint64_t, 4> lanes_ = {0x60EA27EEADC0B5D6, 0xC2B2AE3D27D4EB4F, 0, 0x61C8864E7A143579};
  std::array<unsigned char, kBlock> rest_{};  // what does not fill a block yet
  std::uint64_t bytes_ = 0;
};

/// 16 lower-case hexadecimal digits.
std::string hex_text(std::uint64_t value);

}  // namespace stagecraft
