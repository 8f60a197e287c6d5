#include "stagecraft/schedule/table.h"

#include <gtest/gtest.h>

#include <sstream>

#include "stagecraft/schedule/csv.h"

namespace stagecraft {
namespace {

std::string table(const std::vector<Row>& rows, const TableOptions& options = {}) {
  std::ostringstream out;
  write_table(out, rows, options);
  return out.str();
}

std::string table(std::string_view csv, const TableOptions& options = {}) { return table(parse_csv(csv), options); }

constexpr std::string_view kTwoRanks = "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n";

TEST(Table, OneLinePerStepOneColumnPerRank) {
  EXPECT_EQ(table(kTwoRanks),
            "        Rank 0  Rank 1\n"
            "Step 0: 0F0\n"
            "Step 1: 0F1     1F0\n"
            "Step 2:         1B0\n"
            "Step 3: 0B0     1F1\n"
            "Step 4:         1B1\n"
            "Step 5: 0B1\n");
}

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  EXPECT_EQ(table("(0F5;7B2)OVERLAP_F_B,0F1,\n1F0,1SEND_B12\n"),
            "        Rank 0                Rank 1\n"
            "Step 0: (0F5;7B2)OVERLAP_F_B  1F0\n"
            "Step 1: 0F1                   1SEND_B12\n"
            "Step 2:\n");
}

TEST(Table, StepNumbersArePaddedToTheLastOne) {
  const std::string text = table(std::vector<Row>{Row(11)});
  EXPECT_TRUE(text.starts_with("         Rank 0\nStep 00:\nStep 01:\n")) << text;
  EXPECT_TRUE(text.ends_with("Step 09:\nStep 10:\n")) << text;
}

TEST(Table, RaggedRowsAndMoreRanksThanSteps) {
  EXPECT_EQ(table("0F0\n\n2F0,2B0\n\n"),
            "        Rank 0  Rank 1  Rank 2  Rank 3\n"
            "Step 0: 0F0             2F0\n"
            "Step 1:                 2B0\n");
}

TEST(Table, NothingToShow) {
  EXPECT_EQ(table(std::vector<Row>{}), "(no ranks)\n");
  EXPECT_EQ(table(std::vector<Row>(2)), "        Rank 0  Rank 1\n");
  EXPECT_EQ(table(kTwoRanks, {.first_rank = 7}), "(no ranks)\n");
  EXPECT_EQ(table(kTwoRanks, {.first_step = 4, .end_step = 2}), "        Rank 0  Rank 1\n");
}

TEST(Table, TooWideIsCutIntoBlocksOfRanks) {
  const std::string expected =
      "        Rank 0  Rank 1\n"
      "Step 0: 0F0\n"
      "Step 1:         1F0\n"
      "\n"
      "        Rank 2\n"
      "Step 0:\n"
      "Step 1:\n"
      "Step 2: 2F0\n";
  EXPECT_EQ(table("0F0\n,1F0\n,,2F0\n", {.width = 22}), expected);
  EXPECT_EQ(table("0F0\n,1F0\n,,2F0\n", {.width = 29}), expected);
}

TEST(Table, AWidthTooSmallForAnythingStillShowsOneRankPerBlock) {
  EXPECT_EQ(table("0F0\n1F0\n", {.width = 1}),
            "        Rank 0\n"
            "Step 0: 0F0\n"
            "\n"
            "        Rank 1\n"
            "Step 0: 1F0\n");
}

TEST(Table, ExcerptKeepsTheLabelsOfTheWholeTable) {
  std::vector<Row> rows(3, Row(12, Action::forward(StageId(1), MicrobatchId(3))));
  EXPECT_EQ(
      table(rows, {.first_step = 8, .end_step = 11, .first_rank = 1, .end_rank = 3, .mark = TableMark{RankId(2), 9}}),
      "         Rank 1  Rank 2\n"
      "Step 08: 1F3     1F3\n"
      "Step 09: 1F3     1F3  <-- here: rank 2\n"
      "Step 10: 1F3     1F3\n");
}

TEST(Table, MarkOnIdleSlotOutsideTheExcerptAndInBlocks) {
  EXPECT_EQ(table(kTwoRanks, {.first_step = 5, .mark = TableMark{RankId(1), 5}}),
            "        Rank 0  Rank 1\n"
            "Step 5: 0B1  <-- here: rank 1\n");
  EXPECT_EQ(table(kTwoRanks, {.first_step = 5, .mark = TableMark{RankId(1), 2}}),
            "        Rank 0  Rank 1\n"
            "Step 5: 0B1\n");
  EXPECT_EQ(table("0F0\n,1F0\n", {.width = 10, .mark = TableMark{RankId(0), 1}}),
            "        Rank 0\n"
            "Step 0: 0F0\n"
            "Step 1:  <-- here: rank 0\n"
            "\n"
            "        Rank 1\n"
            "Step 0:\n"
            "Step 1: 1F0\n");
}

TEST(Table, ColourDoesNotMoveTheColumns) {
  EXPECT_EQ(table("0F0,\n1F0,1B0\n", {.colour = true, .mark = TableMark{RankId(1), 1}}),
            "        Rank 0  Rank 1\n"
            "Step 0: \x1b[36m0F0\x1b[0m     \x1b[36m1F0\x1b[0m\n"
            "Step 1:         \x1b[33m\x1b[7m1B0\x1b[0m  <-- here: rank 1\n");
}

TEST(Table, RaggedTablesCostTheirSlotsNotRanksTimesSteps) {
  std::vector<Row> rows(20'000);
  rows.front() = Row(200'000);
  EXPECT_GT(table(rows).size(), 200'000U);  // steps times ranks would be minutes
}

}  // namespace
}  // namespace stagecraft
