#include "stagecraft/sim/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/core/error.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/generator.h"
#include "stagecraft/sim/critical_path.h"
#include "stagecraft/sim/what_if.h"
#include "support/message_of.h"

namespace stagecraft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Schedule from(const char* csv) { return Schedule::from_rows(parse_csv(csv)); }

/// F 2, I 3, W 1, a full backward 4, latency 0.5.
Costs plain_costs() {
  Costs costs;
  costs.stages = {StageCosts{.forward = 2, .backward_input = 3, .backward_weight = 1, .backward = 4}};
  costs.link.latency = 0.5;
  return costs;
}

TEST(Simulator, AddsUpTimesAndLatencies) {
  const Simulation s = simulate(from("0F0,0B0\n1F0,1B0\n"), plain_costs(), {.keep_times = true});
  EXPECT_DOUBLE_EQ(s.times[1][0].start, 2.5);
  EXPECT_DOUBLE_EQ(s.times[1][1].end, 8.5);
  EXPECT_DOUBLE_EQ(s.times[0][1].start, 9);
  EXPECT_DOUBLE_EQ(s.makespan, 13);
  EXPECT_DOUBLE_EQ(s.span, 13) << "rank 0's; rank 1's is 6";
  EXPECT_DOUBLE_EQ(s.ranks[1].span(), 6);
  EXPECT_DOUBLE_EQ(s.bubble_span(), 1 - 12.0 / 26);
}

TEST(Simulator, OptimizersEndTheMakespanButNotTheSpan) {
  Costs costs = plain_costs();
  costs.stages[0].optimizer = 7;
  const Simulation s = simulate(from("0F0,0B0\n"), costs);
  EXPECT_DOUBLE_EQ(s.makespan, 13);
  EXPECT_DOUBLE_EQ(s.span, 6);
}

TEST(Simulator, ALoweredScheduleTakesTheSameTime) {
  for (const Generator* generator : generators()) {
    Schedule schedule = make_schedule(generator->name, {.ranks = 3, .microbatches = 7});
    const Simulation before = simulate(schedule, plain_costs());
    run_passes(schedule);
    const Simulation after = simulate(schedule, plain_costs());
    EXPECT_DOUBLE_EQ(before.makespan, after.makespan) << generator->name;
    EXPECT_DOUBLE_EQ(before.peak_memory(), after.peak_memory()) << generator->name;
  }
}

TEST(Simulator, MessagesOfOneLinkShareItsBandwidth) {
  Costs costs = plain_costs();
  costs.stages[0].forward_bytes = 30;
  costs.link.bandwidth = 10;  // 3 a message, longer than an F
  const Simulation s = simulate(from("0F0,0F1\n1F0,1F1\n"), costs, {.keep_times = true});
  EXPECT_DOUBLE_EQ(s.times[1][0].start, 5.5);
  EXPECT_DOUBLE_EQ(s.times[1][1].start, 8.5) << "3 after the first, though its F ended at 4";
}

TEST(Simulator, WithoutOverlapTheSenderWaits) {
  Costs costs = plain_costs();
  costs.overlap_communication = false;
  const Simulation s = simulate(from("0F0,0F1\n1F0,1F1\n"), costs, {.keep_times = true});
  EXPECT_DOUBLE_EQ(s.times[0][1].start, 2.5);
}

TEST(Simulator, AnOverlapTakesItsFactorOfTheSum) {
  Costs costs = plain_costs();
  costs.overlap_factor = 0.75;
  EXPECT_DOUBLE_EQ(simulate(from("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"), costs).makespan, 2 + 4.5 + 4);
}

TEST(Simulator, MemoryFollowsForwardsAndTheTwoPartsOfBackwards) {
  Costs costs = plain_costs();
  costs.stages[0].activation_memory = 10;
  costs.stages[0].weight_gradient_memory = 4;
  const Simulation s = simulate(from("0F0,0I0,0F1,0W0,0B1\n"), costs, {.keep_memory = true});
  EXPECT_DOUBLE_EQ(s.peak_memory(), 14);
  std::vector<double> levels;
  for (const MemoryPoint& point : s.memory[0]) levels.push_back(point.memory);
  EXPECT_THAT(levels, testing::ElementsAre(10, 14, 10, 0)) << "what an I frees, the F at the same moment takes";
}

TEST(Simulator, MessagesThatWaitTakeBufferMemory) {
  Costs costs = plain_costs();
  costs.stages[0].buffer_memory = 1;
  costs.stages[0].forward = 1;
  costs.rank_slowdown = {1, 10};
  const Simulation s = simulate(from("0F0,0F1,0F2\n1F0,1F1,1F2\n"), costs);
  EXPECT_DOUBLE_EQ(s.ranks[1].peak_memory, 1 + 3) << "one computes, its message and two more are there";
}

TEST(Simulator, RefusesWhatCannotRunAndCostsThatDoNotFit) {
  EXPECT_THROW(simulate(from("0B0,0F0\n"), plain_costs()), ScheduleError);
  Costs costs = plain_costs();
  costs.stages.assign(3, costs.stages[0]);
  costs.rank_slowdown = {1, 1, 1};
  costs.links = {{RankId(0), RankId(7), {}}};
  EXPECT_THAT(message_of([&] { simulate(from("0F0,0B0\n1F0,1B0\n"), costs); }),
              AllOf(HasSubstr("3 entries, but there are 2 stages"), HasSubstr("rank_slowdown"), HasSubstr("rank 7")));
}

TEST(Simulator, ManyActionsTakeSeconds) {
  const Schedule schedule = make_schedule("Interleaved1F1B", {.ranks = 256, .stages_per_rank = 2, .microbatches = 512});
  const Simulation s = simulate(schedule, plain_costs());
  EXPECT_NEAR(s.ranks[0].busy, 512 * 2 * 6, 1e-6);
}

TEST(CriticalPath, RunsFromTheFirstActionToTheLast) {
  const Schedule schedule = make_schedule("1F1B", {.ranks = 3, .microbatches = 5});
  const Simulation s = simulate(schedule, plain_costs(), {.keep_times = true});
  const auto path = critical_path(schedule, s);
  EXPECT_DOUBLE_EQ(path.front().start, 0);
  EXPECT_DOUBLE_EQ(path.back().end, s.makespan);
  const CriticalSummary summary = summarize(path, 3);
  EXPECT_NEAR(summary.compute + summary.messages, s.makespan, 1e-9) << "no gap in it";
  EXPECT_GT(summary.messages, 0);
  EXPECT_THROW(critical_path(schedule, simulate(schedule, plain_costs())), InvalidArgument);
}

TEST(WhatIf, ASlowerRankOrLinkShowsOnlyWhereItIs) {
  const Schedule schedule = make_schedule("1F1B", {.ranks = 4, .microbatches = 8});
  const double before = simulate(schedule, plain_costs()).makespan;
  const Simulation slow = simulate(schedule, with_slower_rank(plain_costs(), 4, RankId(2), 1.5));
  EXPECT_DOUBLE_EQ(slow.ranks[2].busy, 1.5 * slow.ranks[1].busy);
  EXPECT_GT(slow.makespan, before);
  const Costs link = with_slower_link(plain_costs(), 4, RankId(1), RankId(2), 10);
  EXPECT_DOUBLE_EQ(link.between(RankId(2), RankId(1)).latency, 5);
  EXPECT_DOUBLE_EQ(link.between(RankId(0), RankId(1)).latency, 0.5);
  EXPECT_GT(simulate(schedule, link).makespan, before);
  EXPECT_THROW(with_slower_rank(plain_costs(), 4, RankId(4), 2), InvalidArgument);
  EXPECT_THROW(with_slower_link(plain_costs(), 4, RankId(1), RankId(1), 2), InvalidArgument);
  EXPECT_THROW(with_slower_rank(plain_costs(), 4, RankId(0), 0), InvalidArgument);
}

TEST(WhatIf, JitterIsFixedByItsSeed) {
  const Schedule schedule = make_schedule("1F1B", {.ranks = 4, .microbatches = 8});
  const JitterOutcome a = simulate_jitter(schedule, plain_costs(), 0.1, 41, 7);
  const JitterOutcome b = simulate_jitter(schedule, plain_costs(), 0.1, 41, 7);
  const JitterOutcome c = simulate_jitter(schedule, plain_costs(), 0.1, 41, 8);
  EXPECT_EQ(a.median_makespan, b.median_makespan);
  EXPECT_NE(a.median_makespan, c.median_makespan);
  EXPECT_GT(a.p95_makespan, a.median_makespan);
  const double exact = simulate(schedule, plain_costs()).makespan;
  EXPECT_NEAR(a.median_makespan, exact, 0.2 * exact);
  EXPECT_EQ(simulate_jitter(schedule, plain_costs(), 0, 3, 7).p95_makespan, exact);
  EXPECT_THROW(simulate_jitter(schedule, plain_costs(), 0.1, 0, 7), InvalidArgument);
}

}  // namespace
}  // namespace stagecraft
