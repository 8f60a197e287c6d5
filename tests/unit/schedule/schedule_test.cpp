#include "stagecraft/schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/csv.h"

namespace stagecraft {
namespace {

TEST(Schedule, FindsPlacementAndMicrobatchesInTheRows) {
  const Schedule schedule = Schedule::from_rows(parse_csv("1F0,1F1,,1B0,1B1\n0F0,0F1,0B0,,0B1\n"));
  EXPECT_EQ(schedule.stages(), 2);
  EXPECT_EQ(schedule.microbatches, 2);
  EXPECT_EQ(schedule.placement.rank_of(StageId(0)), RankId(1));
  EXPECT_EQ(schedule.actions(), 8);
  EXPECT_EQ(schedule.idle_slots(), 2);
  EXPECT_FALSE(schedule.is_lowered());
}

TEST(Schedule, CountsBothHalvesOfAnOverlap) {
  const Schedule schedule = Schedule::from_rows(parse_csv("0F0,1F0,1B0,(0F1;0B0)OVERLAP_F_B,1F1,1B1,0B1\n"));
  EXPECT_EQ(schedule.stages(), 2);
  EXPECT_EQ(schedule.microbatches, 2);
  EXPECT_EQ(schedule.actions(), 7);
}

TEST(Schedule, AnythingBeyondComputeMakesItLowered) {
  EXPECT_TRUE(Schedule::from_rows(parse_csv("0UNSHARD,0F0")).is_lowered());
  EXPECT_TRUE(Schedule::from_rows(parse_csv("0F0,0SEND_F0\n1RECV_F0,1F0")).is_lowered());
}

std::string refusal_of(const char* csv) {
  try {
    Schedule::from_rows(parse_csv(csv));
  } catch (const ScheduleError& error) {
    return error.what();
  }
  return "";
}

TEST(Schedule, RefusesAStageOnTwoRanks) {
  EXPECT_THAT(refusal_of("0F0\n1F0,,0B0"),
              testing::HasSubstr("stage 0 computes on rank 0 and on rank 1 (0B0 at step 2)"));
}

TEST(Schedule, RefusesGapsAndEmptiness) {
  EXPECT_THAT(refusal_of("0F0\n2F0"), testing::HasSubstr("stage 1 never computes"));
  EXPECT_THAT(refusal_of("16777215F0"), testing::HasSubstr("stage 0 never computes"));
  EXPECT_THAT(refusal_of(""), testing::HasSubstr("no compute action"));
  EXPECT_THAT(refusal_of("0UNSHARD,1SEND_F0"), testing::HasSubstr("no compute action"));
}

}  // namespace
}  // namespace stagecraft
