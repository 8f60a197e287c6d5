#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace stagecraft {

/// Incremental XXH64 (seed 0), a published hash that other programs can compute too. Detects accidental damage at about
/// the speed of memory; gives no protection against an attacker.
class Checksum {
 public:
  void add(const void* bytes, std::size_t size);
  /// The checksum of all bytes so far.
  [[nodiscard]] std::uint64_t value() const;

 private:
  static constexpr std::size_t kBlock = 32;

  std::array<std::uint64_t, 4> lanes_ = {0x60EA27EEADC0B5D6, 0xC2B2AE3D27D4EB4F, 0, 0x61C8864E7A143579};
  std::array<unsigned char, kBlock> rest_{};  // bytes that do not fill a block yet
  std::uint64_t bytes_ = 0;
};

/// The value as 16 lower-case hexadecimal digits.
std::string hex_text(std::uint64_t value);

}  // namespace stagecraft
