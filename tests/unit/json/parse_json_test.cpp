#include "parse_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.h"

namespace stagecraft::json {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string nested(int levels, const std::string& open, const std::string& close) {
  std::string text;
  for (int i = 0; i < levels; ++i) text += open;
  text += "1";
  for (int i = 0; i < levels; ++i) text += close;
  return text;
}

std::string refusal(const std::string& text) {
  return message_of([&] { (void)parse<nlohmann::json>(text, "write it again"); });
}

TEST(ParseJson, LevelsUpToTheLimit) {
  EXPECT_EQ(parse<nlohmann::json>(nested(kDeepest, "[", "]"), "").dump(), nested(kDeepest, "[", "]"));
  EXPECT_EQ(parse<nlohmann::ordered_json>(nested(kDeepest, "{\"a\":", "}"), "").dump(),
            nested(kDeepest, "{\"a\":", "}"));
  for (const int levels : {kDeepest + 1, 50'000, 3'000'000}) {
    const auto refused =
        AllOf(StartsWith("line 1: "), HasSubstr("nested more than 256 deep"), HasSubstr(": write it again"));
    EXPECT_THAT(refusal(nested(levels, "[", "]")), refused);
    EXPECT_THAT(refusal(nested(levels, "{\"a\":", "}")), refused);
    EXPECT_THAT(refusal(nested(levels, "[", "")), refused) << "also where nothing is closed";
  }
}

TEST(ParseJson, BracketsInTextsAreNotLevels) {
  const std::string text = "[\"" + std::string(1000, '[') + "\\\"" + std::string(1000, '{') + "\\\\\", [1]]";
  EXPECT_EQ(parse<nlohmann::json>(text, "").size(), 2U);
  EXPECT_THAT(refusal("[\"\\\\\"," + nested(kDeepest, "[", "]") + "]"), HasSubstr("nested")) << "the text ends here";
}

TEST(ParseJson, ManyListsBesideEachOtherAreNotDeep) {
  std::string text = "[[]";
  for (int i = 0; i < 1000; ++i) text += ",[{}]";
  EXPECT_EQ(parse<nlohmann::json>(text + "]", "").size(), 1001U);
}

TEST(ParseJson, RefusalsAreInOurWords) {
  for (const std::string text :
       {"", "{", "[1,\n2,,3]", "nul", "\"\xff\"", "[1e999]", "[-1e999]", "{}}", "\"\\ud800\"", "[1]\n2"}) {
    EXPECT_THAT(refusal(text), AllOf(HasSubstr("JSON"), HasSubstr("write it again"), Not(HasSubstr("json.exception"))))
        << text;
  }
  EXPECT_THAT(refusal("[1,\n2,,3]"), StartsWith("line 2: this is not JSON"));
  EXPECT_THAT(refusal("[1e999]"), HasSubstr("number overflow parsing '1e999'"));
}

TEST(ParseJson, AZeroIsNotTheEnd) {
  using std::string_literals::operator""s;
  EXPECT_THAT(refusal("{}\0 more"s), HasSubstr("a byte 0"));
  EXPECT_THAT(refusal("[\"a\0\"]"s), HasSubstr("a byte 0"));
  EXPECT_THAT(refusal("\"\\\0\""s), HasSubstr("a byte 0"));
}

TEST(ParseJson, ReasonsLoseTheirNumber) {
  EXPECT_EQ(reason_in("[json.exception.out_of_range.406] number overflow parsing '1e999'"),
            "number overflow parsing '1e999'");
  EXPECT_EQ(reason_in("[json.exception.parse_error.101] parse error at line 1: syntax error: bad"), "bad");
  EXPECT_EQ(reason_in("plain"), "plain");
  EXPECT_EQ(reason_in("[unclosed"), "[unclosed");
}

}  // namespace
}  // namespace stagecraft::json
