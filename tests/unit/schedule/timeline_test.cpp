// What recorded actions add to the time of their rank.

#include "stagecraft/schedule/timeline.h"

#include <gtest/gtest.h>

namespace stagecraft {
namespace {

void expect_times(const Timeline& timeline, const std::vector<OwnTime>& expected) {
  const std::vector<OwnTime> got = own_times(timeline);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i].waited, expected[i].waited, 1e-9) << to_text(timeline[i].action);
    EXPECT_NEAR(got[i].worked, expected[i].worked, 1e-9) << to_text(timeline[i].action);
  }
}

TEST(OwnTimes, OfActionsOneAfterTheOther) {
  const Action send(ActionKind::kSendForward, StageId(0), MicrobatchId(0));
  const Action reduce = Action::of_stage(ActionKind::kReduceGrad, StageId(0));
  expect_times({{to_action("0F0"), 0, 3}, {send, 3, 3.5}, {to_action("0B0"), 4, 9, 2}, {reduce, 5, 9, 1, 8, true}},
               {{0, 3}, {0, 0.5}, {2, 3}, {0, 0}});
  expect_times({}, {});
}

TEST(OwnTimes, WorkOfTheOtherHalfOfAnOverlapHidesAWait) {
  expect_times({{to_action("0F1"), 0, 10}, {to_action("1B0"), 0.1, 14, 7}}, {{0, 10}, {0, 4}});
  expect_times({{to_action("0F1"), 0, 10}, {to_action("1B0"), 0.1, 14, 11.9}}, {{0, 10}, {2, 2}});
  // Whichever was issued first, and has ended first.
  expect_times({{to_action("1B0"), 0, 14, 7}, {to_action("0F1"), 0.1, 10}}, {{0, 4}, {0, 9.9}});
  expect_times({{to_action("1B0"), 0, 9, 8}, {to_action("0F1"), 0.1, 5}}, {{3, 1}, {0, 4.9}});
  expect_times({{to_action("0F1"), 2, 6}, {to_action("1B0"), 2.5, 4}}, {{0, 4}, {0, 0}});
  // Both wait.
  expect_times({{to_action("0F1"), 0, 6, 4}, {to_action("1B0"), 0, 8, 3}}, {{0, 0}, {3, 5}});
}

}  // namespace
}  // namespace stagecraft
