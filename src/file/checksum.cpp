// XXH64: four lanes, each of which hashes every fourth 8-byte word, merged at the end with the remaining bytes. A
// lane's step is a bijection of its word, so a change within one word always changes its lane.

#include "stagecraft/file/checksum.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace stagecraft {
namespace {

static_assert(std::endian::native == std::endian::little, "words are taken as they lie in memory");

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5;

template <typename Word>
Word word_at(const unsigned char* bytes) {
  Word word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

std::uint64_t step(std::uint64_t lane, std::uint64_t word) { return std::rotl(lane + word * kPrime2, 31) * kPrime1; }

/// Hashes all whole blocks; returns the number of remaining bytes.
std::size_t take_blocks(std::array<std::uint64_t, 4>& lanes, const unsigned char* bytes, std::size_t size) {
  auto [a, b, c, d] = lanes;
  for (; size >= 32; bytes += 32, size -= 32) {
    a = step(a, word_at<std::uint64_t>(bytes));
    b = step(b, word_at<std::uint64_t>(bytes + 8));
    c = step(c, word_at<std::uint64_t>(bytes + 16));
    d = step(d, word_at<std::uint64_t>(bytes + 24));
  }
  lanes = {a, b, c, d};
  return size;
}

}  // namespace

void Checksum::add(const void* bytes, std::size_t size) {
  if (size == 0) return;
  const auto* next = static_cast<const unsigned char*>(bytes);
  const std::size_t held = bytes_ % kBlock;
  bytes_ += size;
  if (held > 0) {
    const std::size_t taken = std::min(size, kBlock - held);
    std::memcpy(rest_.data() + held, next, taken);
    if (held + taken < kBlock) return;
    take_blocks(lanes_, rest_.data(), kBlock);
    next += taken;
    size -= taken;
  }
  const std::size_t left = take_blocks(lanes_, next, size);
  std::memcpy(rest_.data(), next + (size - left), left);
}

std::uint64_t Checksum::value() const {
  std::uint64_t hash = kPrime5;
  if (bytes_ >= kBlock) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) hash = (hash ^ step(0, lane)) * kPrime1 + kPrime4;
  }
  hash += bytes_;
  const unsigned char* next = rest_.data();
  std::size_t left = bytes_ % kBlock;
  for (; left >= 8; next += 8, left -= 8) {
    hash = std::rotl(hash ^ step(0, word_at<std::uint64_t>(next)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash = std::rotl(hash ^ (word_at<std::uint32_t>(next) * kPrime1), 23) * kPrime2 + kPrime3;
    next += 4;
    left -= 4;
  }
  for (; left > 0; ++next, --left) hash = std::rotl(hash ^ (*next * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33U)) * kPrime2;
  hash = (hash ^ (hash >> 29U)) * kPrime3;
  return hash ^ (hash >> 32U);
}

std::string hex_text(std::uint64_t value) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, value >>= 4U) *digit = kDigits[value & 15U];
  return text;
}

}  // namespace stagecraft
