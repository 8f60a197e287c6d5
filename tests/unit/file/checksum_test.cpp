#include "stagecraft/file/checksum.h"

#include <gtest/gtest.h>

#include "stagecraft/core/random.h"

namespace stagecraft {
namespace {

std::uint64_t sum_of(const std::string& text) {
  Checksum sum;
  sum.add(text.data(), text.size());
  return sum.value();
}

TEST(Checksum, IsTheKnownXxh64) {
  EXPECT_EQ(sum_of(""), 0xEF46DB3751D8E999U);
  EXPECT_EQ(sum_of("a"), 0xD24EC4F1A98C6E5BU);
  EXPECT_EQ(sum_of("abc"), 0x44BC2CF5AD770999U);
  EXPECT_EQ(sum_of("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1U);
  std::string bytes;
  for (int i = 0; i <= 100; ++i) bytes += static_cast<char>(i);
  EXPECT_EQ(sum_of(bytes), 0xE99038495F85381EU);
}

TEST(Checksum, DoesNotDependOnThePieces) {
  Random random;
  random.seed(5);
  std::string bytes(1000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.next());
  for (int trial = 0; trial < 200; ++trial) {
    const std::string text = bytes.substr(0, random.next() % bytes.size());
    Checksum sum;
    for (std::size_t done = 0; done < text.size();) {
      const std::size_t piece = std::min<std::size_t>(random.next() % 70, text.size() - done);
      sum.add(text.data() + done, piece);
      done += piece;
    }
    EXPECT_EQ(sum.value(), sum_of(text)) << text.size();
  }
}

TEST(Checksum, EveryFlippedBitChangesIt) {
  for (const std::size_t size : {1U, 3U, 4U, 8U, 31U, 32U, 33U, 64U, 100U}) {
    std::string bytes(size, '\x5a');
    const std::uint64_t before = sum_of(bytes);
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      EXPECT_NE(sum_of(bytes), before) << size << " bytes, bit " << bit;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    }
  }
}

TEST(Checksum, InDigits) {
  EXPECT_EQ(hex_text(0), "0000000000000000");
  EXPECT_EQ(hex_text(0xEF46DB3751D8E999U), "ef46db3751d8e999");
  EXPECT_EQ(hex_text(0x1), "0000000000000001");
}

}  // namespace
}  // namespace stagecraft
