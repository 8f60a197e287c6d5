#include "stagecraft/file/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "stagecraft/core/error.h"
#include "support/message_of.h"
#include "support/scratch_folder.h"

namespace stagecraft {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

template <typename Number>
std::string bytes_of_numbers(const std::vector<Number>& numbers) {
  std::string bytes(numbers.size() * sizeof(Number), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

std::string header_of(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::vector<std::int32_t> words(256);
  words[0] = magic;
  words[1] = version;
  words[2] = count;
  return bytes_of_numbers(words);
}

constexpr std::int32_t kGpt2 = 20240520;
constexpr std::int32_t kLlama3 = 20240801;

class TokenFiles : public testing::Test {
 protected:
  std::vector<std::int64_t> tokens_of(const std::string& bytes, TokenType type = TokenType::kAuto,
                                      const std::string& name = "t.bin") {
    folder_.write(name, bytes);
    const TokenFile file(folder_.path(name), type);
    std::vector<std::int64_t> tokens(file.size());
    file.read(0, tokens.size(), tokens.data());
    return tokens;
  }
  std::string refusal(const std::string& bytes, TokenType type = TokenType::kAuto, const std::string& name = "t.bin") {
    return message_of([&] { tokens_of(bytes, type, name); });
  }

  ScratchFolder folder_;
};

TEST_F(TokenFiles, WithoutAHeader) {
  EXPECT_THAT(tokens_of(bytes_of_numbers<std::uint16_t>({1, 65535, 3})), ElementsAre(1, 65535, 3));
  EXPECT_THAT(tokens_of(bytes_of_numbers<std::uint32_t>({1, 4'000'000'000, 3}), TokenType::kUint32),
              ElementsAre(1, 4'000'000'000, 3));
}

TEST_F(TokenFiles, WithTheHeaderOfLlmC) {
  const std::string small = header_of(kGpt2, 1, 3) + bytes_of_numbers<std::uint16_t>({1, 50256, 3});
  const std::string large = header_of(kLlama3, 7, 3) + bytes_of_numbers<std::uint32_t>({1, 128'000, 3});
  EXPECT_THAT(tokens_of(small), ElementsAre(1, 50256, 3));
  EXPECT_THAT(tokens_of(large), ElementsAre(1, 128'000, 3));
  EXPECT_THAT(tokens_of(large, TokenType::kUint32), ElementsAre(1, 128'000, 3));
  EXPECT_THAT(refusal(small, TokenType::kUint32),
              AllOf(HasSubstr("its header says that tokens are uint16"), HasSubstr("uint32 was asked for")));
}

TEST_F(TokenFiles, HeadersThatDoNotFit) {
  const std::string tokens = bytes_of_numbers<std::uint16_t>({1, 2, 3});
  EXPECT_THAT(refusal(header_of(kGpt2, 1, 3).substr(0, 1000)),
              HasSubstr("ends after 1000 bytes, in the header of 1024"));
  EXPECT_THAT(refusal(header_of(kGpt2, 2, 3) + tokens), HasSubstr("version 2, and only version 1 is known"));
  EXPECT_THAT(refusal(header_of(kLlama3, 1, 3) + tokens), HasSubstr("version 1, and only version 7 is known"));
  EXPECT_THAT(refusal(header_of(kGpt2, 1, 4) + tokens), HasSubstr("there are 4 tokens of uint16, but 6 bytes follow"));
  EXPECT_THAT(refusal(header_of(kGpt2, 1, 2) + tokens), HasSubstr("there are 2 tokens of uint16, but 6 bytes follow"));
  EXPECT_THAT(refusal(header_of(kGpt2, 1, -3) + tokens), HasSubstr("there are -3 tokens"));
  EXPECT_THAT(refusal(header_of(kGpt2, 1, 0)), HasSubstr("there are 0 tokens"));
  EXPECT_THAT(refusal(header_of(static_cast<std::int32_t>(0x88D83401U), 1 << 24, 3 << 24)), HasSubstr("big-endian"));
}

/// Tokens may by chance be those of a magic number: with a type given, only a header that fits is one.
TEST_F(TokenFiles, TokensThatLookLikeAHeader) {
  const std::string tokens = bytes_of_numbers<std::uint16_t>({0xD888, 0x0134, 7});
  EXPECT_THAT(refusal(tokens), HasSubstr("in the header of 1024"));
  EXPECT_THAT(tokens_of(tokens, TokenType::kUint16), ElementsAre(0xD888, 0x0134, 7));
}

TEST_F(TokenFiles, Sizes) {
  EXPECT_THAT(refusal(""), AllOf(StartsWith(folder_.path("t.bin")), HasSubstr("it is empty")));
  EXPECT_THAT(refusal("abc"), HasSubstr("it has 3 bytes, which is no whole number of tokens of uint16"));
  EXPECT_THAT(refusal("abcdef", TokenType::kUint32), HasSubstr("no whole number of tokens of uint32"));
  EXPECT_THAT(message_of([] { const TokenFile file("/nowhere/t.bin"); }), HasSubstr("/nowhere/t.bin: cannot read it"));
}

/// Read as uint16, every second token would be an upper half: wrong numbers without a word.
TEST_F(TokenFiles, TokensOfTheOtherType) {
  std::vector<std::uint32_t> wide;
  std::vector<std::uint16_t> narrow;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    wide.push_back(i * 131 % 128'256);
    narrow.push_back(static_cast<std::uint16_t>(i * 131 % 50'257));
  }
  EXPECT_THAT(refusal(bytes_of_numbers(wide)), AllOf(HasSubstr("as if they were uint32"), HasSubstr("--token-type")));
  EXPECT_EQ(tokens_of(bytes_of_numbers(wide), TokenType::kUint32).size(), 1000U);
  EXPECT_EQ(tokens_of(bytes_of_numbers(wide), TokenType::kUint16).size(), 2000U) << "if one says so";
  EXPECT_EQ(tokens_of(bytes_of_numbers(narrow)).size(), 1000U);
  EXPECT_EQ(tokens_of(std::string(4000, '\0')).size(), 2000U) << "zeros can be either";
}

TEST_F(TokenFiles, FromNumpy) {
  const auto array = [](const std::string& descr, const std::string& shape, const std::string& data) {
    const std::string dict = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
    return std::string("\x93NUMPY\x01", 7) + '\0' + static_cast<char>(dict.size()) + '\0' + dict + data;
  };
  const auto read = [&](const std::string& file) { return tokens_of(file, TokenType::kAuto, "t.npy"); };
  EXPECT_THAT(read(array("<u2", "(2,)", bytes_of_numbers<std::uint16_t>({1, 65535}))), ElementsAre(1, 65535));
  EXPECT_THAT(read(array("<i8", "(2,)", bytes_of_numbers<std::int64_t>({-1, 1LL << 40}))), ElementsAre(-1, 1LL << 40));
  EXPECT_THAT(read(array("|u1", "(2,)", "\x01\xff")), ElementsAre(1, 255));
  const auto refused = [&](const std::string& file) { return refusal(file, TokenType::kAuto, "t.npy"); };
  EXPECT_THAT(refused(array("<f4", "(1,)", "abcd")),
              HasSubstr("it is F32 [1], but tokens are an array of one dimension"));
  EXPECT_THAT(refused(array("<u2", "(1, 2)", "abcd")), HasSubstr("it is U16 [1, 2]"));
  EXPECT_THAT(refused(array("<u2", "(0,)", "")), HasSubstr("no tokens"));
}

TEST_F(TokenFiles, ReadsParts) {
  folder_.write("t.bin", bytes_of_numbers<std::uint16_t>({5, 6, 7, 8}));
  const TokenFile file(folder_.path("t.bin"));
  std::vector<std::int64_t> two(2);
  file.read(1, 2, two.data());
  EXPECT_THAT(two, ElementsAre(6, 7));
  EXPECT_THAT(message_of([&] { file.read(3, 2, two.data()); }), HasSubstr("tokens 3 to 5 are asked for"));
  EXPECT_THAT(message_of([&] { file.read(std::numeric_limits<std::uint64_t>::max(), 2, two.data()); }),
              HasSubstr("are asked for"));
}

}  // namespace
}  // namespace stagecraft
