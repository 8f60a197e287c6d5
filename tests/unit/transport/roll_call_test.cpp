#include "roll_call.h"

#include <gtest/gtest.h>

namespace stagecraft {
namespace {

using Kind = Notice::Kind;

/// A notice; `about` and `text` are those of a failure, or none.
Notice says(Notice::Kind kind, std::uint64_t step, std::int32_t about = -1, const std::string& text = "") {
  return {kind, step, about, text};
}

TEST(RollCall, TheRootTakesTheFailureOfTheLowestRank) {
  RollCall root(RankId(0), 4);
  root.answer();
  root.hear(RankId(3), says(Kind::kSettle, 0, 3, "three"));
  root.hear(RankId(1), says(Kind::kSettle, 0));
  EXPECT_FALSE(root.is_complete());
  root.hear(RankId(2), says(Kind::kSettle, 0, 2, "two"));
  ASSERT_TRUE(root.is_complete());
  const auto verdict = root.verdict();
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->message, "two");
  root.conclude(verdict);
  EXPECT_EQ(root.step(), 1U);
  EXPECT_EQ(root.failed_steps(), 1U);
}

TEST(RollCall, TheOthersWaitForTheVerdictAlone) {
  RollCall other(RankId(2), 3);
  other.answer();
  other.hear(RankId(1), says(Kind::kSettle, 0));
  EXPECT_FALSE(other.is_complete());
  other.hear(RankId(0), says(Kind::kVerdict, 0));
  ASSERT_TRUE(other.is_complete());
  other.conclude(other.verdict());
}

TEST(RollCall, AnAbortThatComesAfterTheVerdictIsOfAStepThatHasFailed) {
  RollCall other(RankId(2), 3);
  other.answer();
  other.hear(RankId(0), says(Kind::kVerdict, 0, 1, "broke"));
  other.conclude(other.verdict());
  other.hear(RankId(1), says(Kind::kAbort, 0, 1, "broke"));
  EXPECT_EQ(other.failure(), nullptr) << "the next step is not aborted";
  other.hear(RankId(1), says(Kind::kAbort, 1, 1, "broke again"));
  ASSERT_NE(other.failure(), nullptr);
  EXPECT_EQ(other.failure()->failure.message, "broke again");
}

TEST(RollCall, WhatIsAboutTheNextStepWaits) {
  RollCall other(RankId(2), 3);
  other.hear(RankId(1), says(Kind::kTimeout, 1, 1, "slow"));
  EXPECT_EQ(other.failure(), nullptr);
  other.answer();
  other.hear(RankId(0), says(Kind::kVerdict, 0));
  other.conclude(other.verdict());
  ASSERT_NE(other.failure(), nullptr);
  EXPECT_TRUE(other.failure()->by_timeout);
}

TEST(RollCall, OneThatHasLeftBeforeTheEndOfTheStepMakesSettlingVain) {
  RollCall other(RankId(2), 3);
  EXPECT_EQ(other.reason_not_to_settle(), nullptr);
  other.hear(RankId(1), says(Kind::kDepart, 1, -1, "rank 1 has ended its program"));
  EXPECT_EQ(other.reason_not_to_settle(), nullptr) << "it has had the verdict, which is on its way here";
  other.hear(RankId(0), says(Kind::kVerdict, 0));
  other.conclude(other.verdict());
  ASSERT_NE(other.reason_not_to_settle(), nullptr);
  EXPECT_EQ(other.reason_not_to_settle()->rank, RankId(1));
}

TEST(RollCall, OneThatGaveUpIsHeardByAll) {
  RollCall other(RankId(2), 3);
  other.hear(RankId(1), says(Kind::kGiveUp, 0, 0, "rank 0 is slow"));
  ASSERT_NE(other.reason_to_give_up(RankId(1)), nullptr);
  EXPECT_EQ(other.reason_to_give_up(RankId(1))->message, "rank 0 is slow");
  EXPECT_NE(other.reason_not_to_settle(), nullptr);
  EXPECT_FALSE(other.lost().has_value()) << "no process is";
}

/// It has the verdict of the step before, which may come later than its words, from another rank.
TEST(RollCall, OneThatGaveUpInALaterStepEndsThatOne) {
  RollCall other(RankId(2), 3);
  other.hear(RankId(1), says(Kind::kGiveUp, 1, 0, "rank 0 has ended its program"));
  EXPECT_EQ(other.reason_not_to_settle(), nullptr);
  other.hear(RankId(0), says(Kind::kVerdict, 0));
  ASSERT_TRUE(other.is_complete());
  other.conclude(other.verdict());
  EXPECT_NE(other.reason_not_to_settle(), nullptr);
  EXPECT_NE(other.reason_to_give_up(RankId(1)), nullptr);

  RollCall third(RankId(2), 4);
  third.hear(RankId(1), says(Kind::kGiveUp, 1, 0, "rank 0 has ended its program"));
  third.hear(RankId(3), says(Kind::kGiveUp, 0, 0, "rank 0 is slow"));
  EXPECT_NE(third.reason_not_to_settle(), nullptr) << "the verdict of this step may never come";
}

}  // namespace
}  // namespace stagecraft
