#include "crc32.h"

#include <array>

namespace stagecraft {
namespace {

constexpr std::uint32_t kPolynomial = 0xEDB88320;
constexpr std::size_t kAtOnce = 8;

/// Table k holds the remainders of a byte that k zero bytes follow, so that eight bytes are looked up side by side.
using Tables = std::array<std::array<std::uint32_t, 256>, kAtOnce>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = rest;
  }
  for (std::size_t k = 1; k < kAtOnce; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}
constexpr Tables kTables = make_tables();

}  // namespace

std::uint32_t crc32(const void* bytes, std::size_t size, std::uint32_t so_far) {
  const auto* next = static_cast<const unsigned char*>(bytes);
  std::uint32_t rest = ~so_far;
  for (; size >= kAtOnce; size -= kAtOnce, next += kAtOnce) {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < kAtOnce; ++i) {
      const std::uint32_t mixed = i < 4 ? (next[i] ^ ((rest >> (8 * i)) & 0xff)) : next[i];
      sum ^= kTables[kAtOnce - 1 - i][mixed];
    }
    rest = sum;
  }
  for (; size > 0; --size, ++next) rest = (rest >> 8) ^ kTables[0][(rest ^ *next) & 0xff];
  return ~rest;
}

}  // namespace stagecraft
