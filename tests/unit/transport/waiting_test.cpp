#include "waiting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace stagecraft {
namespace {

using testing::HasSubstr;

Wait message_from(int rank, MessageKind kind = MessageKind::kForward, bool is_main = true) {
  return {false, RankId(rank), {kind, StageId(0), StageId(1), MicrobatchId(3)}, nullptr, is_main};
}
const Wait kEndOfStep{.is_settling = true, .from = RankId(-1), .tag = {}};

/// The error of rank 0 if the other ranks have the given standings; ranks without one compute.
TimeoutError error_of(int ranks, const Wait& own, const std::map<int, Standing>& given) {
  std::vector<Standing> all(static_cast<std::size_t>(ranks));
  for (const auto& [rank, standing] : given) all[static_cast<std::size_t>(rank)] = standing;
  all[0].waits = {own};
  return timeout_error(RankId(0), ranks, own, Timeout(2000),
                       [&](RankId rank) -> const Standing& { return all[rank.index()]; });
}

Standing waiting(const Wait& wait) { return {true, false, {wait}, ""}; }
Standing computing(const std::string& action) { return {true, false, {}, action}; }

TEST(Waiting, FollowsTheWaitsToTheRankThatDoesNotWait) {
  const TimeoutError error =
      error_of(4, message_from(1), {{1, waiting(message_from(3))}, {2, computing("2F1")}, {3, computing("3F0")}});
  EXPECT_STREQ(
      error.what(),
      "rank 0 waited 2000 ms for the activation of microbatch 3 from stage 0 to stage 1 from rank 1, which waits "
      "for rank 3, which does not wait for any rank (it is at 3F0): look at what rank 3 does, or allow more time");
  EXPECT_EQ(error.peer(), RankId(3));
}

TEST(Waiting, ARankThatIsWaitedForDirectly) {
  const TimeoutError error = error_of(2, message_from(1), {});
  EXPECT_THAT(error.what(), HasSubstr("from rank 1, which does not wait for any rank (it is outside of the schedule): "
                                      "look at what rank 1 does"));
  EXPECT_EQ(error.peer(), RankId(1));
}

TEST(Waiting, TheEndOfAStepIsWaitedForOnAllThatHaveNotCome) {
  const TimeoutError error = error_of(
      5, kEndOfStep,
      {{1, waiting(message_from(4))}, {2, waiting(kEndOfStep)}, {3, waiting(message_from(1))}, {4, computing("4B1")}});
  EXPECT_THAT(error.what(),
              HasSubstr("for the end of the step on rank 1, 3, 4, of which rank 1 waits for rank 4, which "
                        "does not wait for any rank (it is at 4B1)"));
  EXPECT_EQ(error.peer(), RankId(4));
  const TimeoutError of_one = error_of(3, kEndOfStep, {{1, waiting(kEndOfStep)}, {2, computing("2F0")}});
  EXPECT_THAT(of_one.what(), HasSubstr("for the end of the step on rank 2, which does not wait for any rank"));
  const TimeoutError of_two = error_of(3, kEndOfStep, {{1, computing("1F0")}, {2, computing("2F0")}});
  EXPECT_THAT(of_two.what(), HasSubstr("on rank 1, 2, of which rank 1 does not wait for any rank (it is at 1F0)"));
}

TEST(Waiting, ARankThatWaitsForTheEndOfTheStepIsNotToBlame) {
  const TimeoutError error = error_of(3, message_from(1), {{1, waiting(kEndOfStep)}, {2, computing("2F0")}});
  EXPECT_EQ(error.peer(), RankId(2));
}

TEST(Waiting, RanksThatWaitForEachOther) {
  const TimeoutError error =
      error_of(3, message_from(1), {{1, waiting(message_from(2))}, {2, waiting(message_from(0))}});
  EXPECT_THAT(error.what(), HasSubstr("which waits for others that wait for it"));
  EXPECT_EQ(error.peer(), RankId(1));
}

TEST(Waiting, ThreadsBesideTheMainOneCountForTheirOwnMessagesOrWhenItRests) {
  const Wait beside = message_from(2, MessageKind::kCollective, /*is_main=*/false);
  Standing standing{true, false, {beside}, "1F0"};
  EXPECT_EQ(error_of(3, message_from(1), {{1, standing}}).peer(), RankId(1));
  EXPECT_EQ(error_of(3, message_from(1, MessageKind::kCollective), {{1, standing}}).peer(), RankId(2));
  standing.is_resting = true;
  EXPECT_EQ(error_of(3, message_from(1), {{1, standing}}).peer(), RankId(2));
}

TEST(Waiting, ARankThatDoesNotAnswerIsNamed) {
  Standing silent;
  silent.has_answered = false;
  const TimeoutError error = error_of(3, message_from(1), {{1, waiting(message_from(2))}, {2, silent}});
  EXPECT_THAT(error.what(), HasSubstr("rank 2, which does not answer"));
  EXPECT_EQ(error.peer(), RankId(2));
}

}  // namespace
}  // namespace stagecraft
