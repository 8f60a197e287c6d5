// Patterns of names, compared with a definition that tries everything.

#include "stagecraft/core/name_pattern.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace stagecraft {
namespace {

bool fits_by_definition(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    for (std::size_t taken = 0; taken <= name.size(); ++taken) {
      if (fits_by_definition(pattern.substr(1), name.substr(taken))) return true;
    }
    return false;
  }
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
         fits_by_definition(pattern.substr(1), name.substr(1));
}

TEST(NamePattern, NamesOfParameters) {
  EXPECT_TRUE(fits_pattern("*.bias", "blocks.3.norm.bias"));
  EXPECT_FALSE(fits_pattern("*.bias", "bias"));
  EXPECT_FALSE(fits_pattern("*.bias", "blocks.3.bias.weight"));
  EXPECT_TRUE(fits_pattern("blocks.?.norm*", "blocks.3.norm.weight"));
  EXPECT_FALSE(fits_pattern("blocks.?.norm*", "blocks.13.norm.weight"));
  EXPECT_TRUE(fits_pattern("*", ""));
  EXPECT_TRUE(fits_pattern("", ""));
  EXPECT_FALSE(fits_pattern("", "a"));
  EXPECT_FALSE(fits_pattern("?", ""));
  EXPECT_TRUE(fits_pattern("[a].+(b)", "[a].+(b)")) << "no other character is special";
}

TEST(NamePattern, IsItsDefinition) {
  std::mt19937 random(5);
  const auto draw = [&](std::string_view letters, std::size_t most) {
    std::string text(random() % (most + 1), ' ');
    for (char& letter : text) letter = letters[random() % letters.size()];
    return text;
  };
  int fitting = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string pattern = draw("ab*?.", 7), name = draw("ab.", 9);
    const bool expected = fits_by_definition(pattern, name);
    ASSERT_EQ(fits_pattern(pattern, name), expected) << pattern << " and " << name;
    fitting += expected ? 1 : 0;
  }
  EXPECT_GT(fitting, 1000);
}

TEST(NamePattern, TakesNoExponentialTime) {
  std::string pattern;
  for (int i = 0; i < 2000; ++i) pattern += "*a";
  EXPECT_FALSE(fits_pattern(pattern + "b", std::string(20'000, 'a')));
}

}  // namespace
}  // namespace stagecraft
