#include "stagecraft/sim/step_simulator.h"

#include <gtest/gtest.h>

#include "stagecraft/core/error.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/generator.h"

namespace stagecraft {
namespace {

Schedule schedule_of(const char* csv) { return Schedule::from_rows(parse_csv(csv)); }

std::string spread(const Schedule& schedule) {
  std::string text = to_csv(spread_over_steps(schedule, simulate_steps(schedule)));
  std::erase(text, '\r');
  return text;
}

TEST(StepSimulator, LetsAReceiveFollowItsSendWithinOneStep) {
  // Ranks ascend within a step, so rank 1 sees the SEND of the same step; rank 0 sees rank 1's in the second sweep.
  EXPECT_EQ(spread(schedule_of("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")),
            "0F0,0SEND_F0,,,0RECV_B0,0B0\n"
            ",1RECV_F0,1F0,1B0,1SEND_B0\n");
}

TEST(StepSimulator, ShowsTheBubbleOfAComputeOnlySchedule) {
  EXPECT_EQ(spread(schedule_of("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")),
            "0F0,0F1,,0B0,,0B1\n"
            ",1F0,1B0,1F1,1B1\n");
}

TEST(StepSimulator, KnowsEveryKindOfAction) {
  Schedule schedule = make_schedule("DualPipeV", {.ranks = 2, .microbatches = 4});
  run_passes(schedule);
  const StepTimes times = simulate_steps(schedule);
  EXPECT_EQ(times.steps, count_steps(schedule));
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    for (std::size_t i = 1; i < schedule.rows[r].size(); ++i) EXPECT_LT(times.step_of[r][i - 1], times.step_of[r][i]);
  }
}

TEST(StepSimulator, ZeroBubbleSchedulesHaveNone) {
  // Rank r has r idle steps and then 3 m v actions.
  EXPECT_EQ(count_steps(make_schedule("ZB-H2", {.ranks = 4, .microbatches = 12})), 36 + 3);
  EXPECT_EQ(count_steps(make_schedule("ZBVZeroBubble", {.ranks = 4, .microbatches = 12})), 72 + 3);
}

TEST(StepSimulator, MeetsTheBubbleFormulas) {
  for (const int p : {2, 3, 4, 6, 8, 9, 16}) {
    const int m = 3 * p;
    const auto steps = [&](const char* name) {
      return count_steps(make_schedule(name, {.ranks = p, .microbatches = m}));
    };
    EXPECT_EQ(steps("ForwardOnly"), m + p - 1) << p;
    EXPECT_EQ(steps("GPipe"), 2 * (m + p - 1)) << p;
    EXPECT_EQ(steps("1F1B"), 2 * (m + p - 1)) << p;
    EXPECT_EQ(steps("Eager1F1B"), 2 * (m + p - 1)) << p;
    EXPECT_EQ(steps("ZB-H1"), 3 * m + p - 1) << p;
    EXPECT_EQ(steps("V-Half"), 6 * m + 3 * p - (p % 2 == 1 ? 4 : 3)) << p;
    EXPECT_EQ(steps("V-Min"), 6 * m + 4 * p - 5) << p;
  }
}

TEST(StepSimulator, SaysWhoCannotGoOn) {
  EXPECT_THROW(count_steps(schedule_of("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")), ScheduleError);
  // Safe with tags, but a RECV that blocks at its position in the row waits for ever.
  const Schedule crossed = schedule_of(
      "0F0,0RECV_B0,0SEND_F0,0B0\n"
      "1RECV_F0,1F0,1B0,1SEND_B0\n");
  EXPECT_THROW(count_steps(crossed), ScheduleError);
}

TEST(Timetable, IsWhatStandsInOrderOnOneClock) {
  EXPECT_TRUE(is_timetable(schedule_of("0F0,,,0B0\n,1F0,1B0\n")));
  EXPECT_FALSE(is_timetable(schedule_of("0F0,0B0\n1F0,1B0\n")));
  EXPECT_FALSE(is_timetable(schedule_of("0F0,0SEND_F0\n1RECV_F0,1F0\n"))) << "lowered";
  EXPECT_FALSE(is_timetable(schedule_of("0F0,0F1,0B0\n"))) << "incomplete";
  EXPECT_TRUE(is_timetable(schedule_of("0F0\n,1F0\n"))) << "forward only";
  for (const char* name :
       {"ZB-H1", "ZB-H2", "V-Half", "V-Min", "1F1B-V", "LoopedBFS", "Interleaved1F1B", "Eager1F1B"}) {
    EXPECT_TRUE(is_timetable(make_schedule(name, {.ranks = 4, .microbatches = 8}))) << name;
  }
}

}  // namespace
}  // namespace stagecraft
