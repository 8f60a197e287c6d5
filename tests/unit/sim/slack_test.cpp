#include "stagecraft/sim/slack.h"

#include <gtest/gtest.h>

#include "stagecraft/passes/pass.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/generator.h"
#include "stagecraft/sim/critical_path.h"

namespace stagecraft {
namespace {

Schedule slack_schedule(const char* csv) { return Schedule::from_rows(parse_csv(csv)); }

std::vector<std::vector<double>> slack_of(const Schedule& schedule, const Costs& costs) {
  return slack(schedule, costs, simulate(schedule, costs, {.keep_times = true}));
}

TEST(Slack, IsWhatAnActionMayLose) {
  // rank 0: F0 0-1, F1 1-2, B0 4-6, B1 7-9      rank 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7
  const auto left = slack_of(slack_schedule("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), Costs());
  EXPECT_EQ(left[0], (std::vector<double>{0, 2, 1, 0}));
  EXPECT_EQ(left[1], (std::vector<double>{0, 0, 0, 0}));
}

TEST(Slack, MessagesTakeTheirTime) {
  Costs costs;
  costs.link.latency = 0.5;
  const auto left = slack_of(slack_schedule("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"), costs);
  EXPECT_DOUBLE_EQ(left[0][1], 2);  // F1 ends at 2, arrives at 2.5, is needed at 4.5
  EXPECT_DOUBLE_EQ(left[0][0], 0);
}

TEST(Slack, NobodyOnTheCriticalPathHasAny) {
  for (const char* name : {"1F1B", "ZB-H1", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}) {
    for (const bool lowered : {false, true}) {
      Schedule schedule = make_schedule(name, {.ranks = 4, .microbatches = 9});
      if (lowered) run_passes(schedule, "send_recv,place_receives");
      Costs costs;
      costs.link.latency = 0.25;
      const Simulation simulation = simulate(schedule, costs, {.keep_times = true});
      const auto left = slack(schedule, costs, simulation);
      for (const CriticalAction& at : critical_path(schedule, simulation)) {
        EXPECT_NEAR(left[at.rank.index()][static_cast<std::size_t>(at.slot)], 0, 1e-9) << name;
      }
      for (const auto& row : left) {
        for (const double value : row) EXPECT_GE(value, -1e-9) << name;
      }
    }
  }
}

TEST(Slack, NeedsTimes) {
  const Schedule schedule = slack_schedule("0F0,0B0\n");
  EXPECT_THROW(slack(schedule, Costs(), simulate(schedule, Costs())), InvalidArgument);
}

}  // namespace
}  // namespace stagecraft
