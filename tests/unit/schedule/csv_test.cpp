#include "stagecraft/schedule/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft {
namespace {

std::vector<std::vector<std::string>> texts(const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> all;
  for (const Row& row : rows) {
    auto& cells = all.emplace_back();
    for (const Action& action : row) cells.push_back(to_text(action));
  }
  return all;
}

using Texts = std::vector<std::vector<std::string>>;

TEST(Csv, ReadsRanksAsLinesAndEmptyCellsAsIdle) {
  EXPECT_EQ(texts(parse_csv("0F0,,0B0\r\n,1F0,1B0\r\n")), (Texts{{"0F0", "", "0B0"}, {"", "1F0", "1B0"}}));
}

class LineEnds : public testing::TestWithParam<const char*> {};

TEST_P(LineEnds, AllReadTheSame) { EXPECT_EQ(texts(parse_csv(GetParam())), (Texts{{"0F0", ""}, {"1F0"}})); }

INSTANTIATE_TEST_SUITE_P(Csv, LineEnds,
                         testing::Values("0F0,\r\n1F0\r\n", "0F0,\n1F0\n", "0F0,\r1F0\r", "0F0,\n1F0", "0F0,\r\n1F0",
                                         "\xEF\xBB\xBF"
                                         "0F0,\n1F0",
                                         "\xEF\xBB\xBF\"0F0\",\n1F0", "\"0F0\",\"\"\n\"1F0\""));

TEST(Csv, KeepsTheNumberOfSlots) {
  EXPECT_EQ(texts(parse_csv("")), Texts{});
  EXPECT_EQ(texts(parse_csv("\n")), (Texts{{}}));
  EXPECT_EQ(texts(parse_csv("\"\"\n")), (Texts{{""}}));
  EXPECT_EQ(texts(parse_csv(",\n")), (Texts{{"", ""}}));
  EXPECT_EQ(texts(parse_csv("0F0\n\n1F0\n")), (Texts{{"0F0"}, {}, {"1F0"}}));
}

TEST(Csv, WritesWhatPythonsCsvModuleWrites) {
  Schedule schedule;
  schedule.rows = parse_csv("0F0,,(0F1;3B0)OVERLAP_F_B\n\"\"\n\n,\n");
  EXPECT_EQ(to_csv(schedule), "0F0,,(0F1;3B0)OVERLAP_F_B\r\n\"\"\r\n\r\n,\r\n");
}

TEST(Csv, ReadsTheSameWhereverTheTextIsCut) {
  const std::string text = "0F0,\"1F0\",\r\n,(0F1;3B0)OVERLAP_F_B\r\n";
  const auto whole = parse_csv(text);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    CsvReader reader;
    reader.feed(std::string_view(text).substr(0, cut));
    reader.feed(std::string_view(text).substr(cut));
    EXPECT_EQ(reader.finish(), whole) << "cut at " << cut;
  }
}

struct Bad {
  std::string text;
  int row;
  int column;
  const char* shown;
};

class Malformed : public testing::TestWithParam<Bad> {};

TEST_P(Malformed, IsRefusedWithItsPlace) {
  try {
    parse_csv(GetParam().text);
    FAIL();
  } catch (const ParseError& error) {
    EXPECT_EQ(error.row(), GetParam().row) << error.what();
    EXPECT_EQ(error.column(), GetParam().column) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().shown));
    EXPECT_THAT(error.what(), testing::HasSubstr("row " + std::to_string(GetParam().row)));
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n")));
  }
}

INSTANTIATE_TEST_SUITE_P(Csv, Malformed,
                         testing::Values(Bad{"0F0\n0F0,bad\n", 2, 2, "'bad'"}, Bad{"0F0;1F0", 1, 1, "'0F0;1F0'"},
                                         Bad{std::string("0F0,\0,1F0", 9), 1, 2, "'\\x00'"},
                                         Bad{std::string(1000, 'x'), 1, 1, "at most 53 characters"},
                                         Bad{"\"0F0", 1, 1, "never closed"}, Bad{"\"0F0\"x,", 1, 1, "closing quote"},
                                         Bad{"0F0,\"1F\n0\"", 1, 2, "'1F\\x0a0'"}, Bad{"\xff\xfe", 1, 1, "\\xff\\xfe"},
                                         Bad{"\xEF\xBB", 1, 1, "\\xef\\xbb"},
                                         Bad{"\xEF\xBB"
                                             "0F0",
                                             1, 1, "\\xef\\xbb0F0"},
                                         Bad{std::string(kMaxRanks + 1, '\n'), 1048577, 0, "more than 1048576 rows"}));

}  // namespace
}  // namespace stagecraft
