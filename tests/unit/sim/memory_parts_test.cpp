// Parameters, gradients, state of the optimizer, replicas and recompute, each worked out by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/core/error.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/generator.h"
#include "stagecraft/sim/critical_path.h"
#include "stagecraft/sim/memory_model.h"
#include "stagecraft/sim/what_if.h"
#include "support/message_of.h"

namespace stagecraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Schedule schedule_from(const char* csv) { return Schedule::from_rows(parse_csv(csv)); }

/// F 2, I 3, W 1, B 4; activations 10, of which an I leaves 4; parameters and gradients 8, optimizer 16, input 1.
Costs full_costs() {
  Costs costs;
  costs.stages = {StageCosts{.forward = 2,
                             .backward_input = 3,
                             .backward_weight = 1,
                             .backward = 4,
                             .activation_memory = 10,
                             .weight_gradient_memory = 4,
                             .parameter_memory = 8,
                             .gradient_memory = 8,
                             .optimizer_memory = 16,
                             .input_memory = 1}};
  return costs;
}

Costs sharing(Shard shard, int replicas = 4) { return with_replicas(full_costs(), replicas, shard); }

std::vector<double> levels(const Simulation& simulation, std::size_t rank = 0) {
  std::vector<double> all;
  for (const MemoryPoint& point : simulation.memory[rank]) all.push_back(point.memory);
  return all;
}
std::vector<double> levels(const char* csv, const Costs& costs) {
  return levels(simulate(schedule_from(csv), costs, {.keep_memory = true}));
}

TEST(MemoryParts, GradientsComeWithTheFirstWeightGradient) {
  const Simulation s = simulate(schedule_from("0F0,0F1,0B0,0B1\n"), full_costs(), {.keep_memory = true});
  EXPECT_THAT(levels(s), ElementsAre(34, 44, 52, 42, 32));
  EXPECT_DOUBLE_EQ(s.peak_memory(), 52);
  EXPECT_DOUBLE_EQ(s.ranks[0].at_peak.parameters, 8);
  EXPECT_DOUBLE_EQ(s.ranks[0].at_peak.gradients, 8);
  EXPECT_DOUBLE_EQ(s.ranks[0].at_peak.optimizer, 16);
  EXPECT_DOUBLE_EQ(s.ranks[0].at_peak.activations, 20);
  EXPECT_THAT(levels("0F0,0I0,0W0\n", full_costs()), ElementsAre(34, 36, 32))
      << "an I gives none: 6 of 10 activations go, and the W brings 8";
}

TEST(MemoryParts, MastersOfAnotherTypeAreHeldBesideTheParameters) {
  Costs costs = full_costs();
  costs.stages[0].master_memory = 16;
  EXPECT_THAT(levels("0F0,0B0\n", costs), ElementsAre(50, 66, 48))
      << "8 + 16 + 16 and 10; the B makes 8 of gradients, and 8 of its own type until they are added";
}

TEST(MemoryParts, ReplicasHoldTheirPartOfWhatTheyShare) {
  // Resident: parameters 8 and masters 8 / 4 = 2, or 2 alone; optimizer 16 / 4 = 4. At the end: a quarter of gradients.
  EXPECT_THAT(levels("0F0,0B0\n", sharing(Shard::kNone)), ElementsAre(34, 42, 32));
  EXPECT_THAT(levels("0F0,0B0\n", sharing(Shard::kOptimizer)), ElementsAre(24, 32, 16));
  EXPECT_THAT(levels("0F0,0B0\n", sharing(Shard::kGradients)), ElementsAre(24, 32, 16));
  EXPECT_THAT(levels("0F0,0B0\n", sharing(Shard::kParameters)), ElementsAre(24, 32, 8));
}

TEST(MemoryParts, AReductionHoldsItsResultAndBuffersAlsoIfItTakesNoTime) {
  Costs costs = sharing(Shard::kGradients);
  costs.stages[0].activation_memory = 2;
  costs.stages[0].reduce_memory = 8;
  const Simulation s = simulate(schedule_from("0F0,0B0\n"), costs);
  EXPECT_DOUBLE_EQ(s.peak_memory(), 10 + 4 + 8 + 8 + 2);
  EXPECT_DOUBLE_EQ(s.ranks[0].at_peak.gradients, 18);
  costs.replica_link.bandwidth = 1;
  EXPECT_DOUBLE_EQ(simulate(schedule_from("0F0,0B0\n"), costs).peak_memory(), 32);
}

TEST(MemoryParts, StagesAreWholeFromUnshardToReshard) {
  Costs costs = sharing(Shard::kParameters);
  costs.stages[0].gradient_memory = 0;
  // The runtime has both stages whole from the start, and drops each after its last action: 2 x (2 + 4) resident.
  EXPECT_THAT(levels("0F0,1F0,1B0,0B0\n", costs), ElementsAre(12 + 16 + 10, 48, 12 + 8 + 10, 12));
  EXPECT_THAT(levels("0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1B0,1RESHARD,0UNSHARD,0B0,0RESHARD\n", costs),
              ElementsAre(30, 40, 30, 12))
      << "one at a time";
  EXPECT_THAT(levels("0F0,1F0,1B0,0B0,0REDUCE_GRAD,1REDUCE_GRAD\n", costs), ElementsAre(30, 48, 38, 28))
      << "gathered at their first use, and kept";
}

TEST(MemoryParts, RecomputeHoldsTheInputBetweenForwardAndBackward) {
  Costs costs;
  costs.stages = full_costs().stages;
  for (const auto field :
       {&StageCosts::parameter_memory, &StageCosts::gradient_memory, &StageCosts::optimizer_memory}) {
    costs.stages[0].*field = 0;
  }
  costs = with_recompute(costs, true);
  const Simulation s = simulate(schedule_from("0F0,0F1,0B1,0B0\n"), costs, {.keep_memory = true});
  EXPECT_THAT(levels(s), ElementsAre(10, 11, 10, 0)) << "the second F is followed by its B, and dropped nothing";
  EXPECT_DOUBLE_EQ(s.makespan, 2 + 2 + 4 + 6);
  const Simulation split = simulate(schedule_from("0F0,0F1,0I0,0I1,0W0,0W1\n"), costs, {.keep_memory = true});
  EXPECT_THAT(levels(split), ElementsAre(10, 11, 11, 14, 8, 4, 0))
      << "1 + 10; an I makes 9 again and leaves 4 of 10 for its W";
  EXPECT_DOUBLE_EQ(split.makespan, 2 + 2 + 5 + 5 + 1 + 1);
  EXPECT_DOUBLE_EQ(split.ranks[0].busy, 16);
}

TEST(MemoryParts, RecomputeOfAnOverlapAndOfASlowRank) {
  Costs costs = with_recompute(full_costs(), true);
  costs.overlap_factor = 0.5;
  costs.rank_slowdown = {2};
  EXPECT_DOUBLE_EQ(simulate(schedule_from("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n"), costs).makespan,
                   2 * (2 + 2 + 0.5 * (2 + 4 + 2) + 6 + 6));
}

TEST(MemoryParts, ForwardsAloneDropNothingAndHaveNoGradients) {
  EXPECT_THAT(levels("0F0,0F1\n", with_recompute(full_costs(), true)), ElementsAre(34, 34, 24));
  const Simulation s = simulate(schedule_from("0F0,0F1\n"), sharing(Shard::kGradients));
  EXPECT_DOUBLE_EQ(s.peak_memory(), 24);
}

TEST(MemoryParts, TheModelBesideTheScheduleIsTheSame) {
  const Placement placement = Placement::loop(1, 5);
  EXPECT_DOUBLE_EQ(resident_memory(sharing(Shard::kParameters), placement, RankId(0)).total(), 5 * (2 + 4));
  EXPECT_DOUBLE_EQ(most_other_memory(sharing(Shard::kParameters), placement, RankId(0)).total(),
                   5 * (2 + 4) + 5 * 8 + 2 + 3 * 8)
      << "all gradients, the result of a reduction, and three stages that are whole";
  EXPECT_DOUBLE_EQ(most_other_memory(full_costs(), placement, RankId(0)).total(), 5 * (8 + 8 + 16));
}

// --- times ---

TEST(ReplicaStream, ComputeWaitsForParametersAndTheStepForReductions) {
  Costs costs = sharing(Shard::kParameters, 2);
  costs.replica_link = {.latency = 0.5, .bandwidth = 1};  // 0.5 + 8 / 2 for a gather, and for a reduce-scatter
  const Schedule schedule = schedule_from("0F0,0B0\n");
  const Simulation s = simulate(schedule, costs, {.keep_times = true});
  EXPECT_DOUBLE_EQ(s.times[0][0].start, 4.5);
  EXPECT_DOUBLE_EQ(s.makespan, 15);
  EXPECT_DOUBLE_EQ(s.span, 6) << "of compute alone";
  EXPECT_DOUBLE_EQ(s.ranks[0].communication, 9);
  EXPECT_DOUBLE_EQ(s.ranks[0].exposed, 9);
  EXPECT_DOUBLE_EQ(s.hidden_communication(), 0);
  EXPECT_DOUBLE_EQ(simulate(schedule, with_replicas(costs, 2, Shard::kNone)).makespan, 6 + 9)
      << "nothing to gather; whole gradients are reduced and gathered";
  costs.stages[0].unshard = 1;
  costs.stages[0].reduce_grad = 2;
  EXPECT_DOUBLE_EQ(simulate(schedule, costs).makespan, 1 + 6 + 2) << "times that are given come first";
  costs.rank_slowdown = {3};
  EXPECT_DOUBLE_EQ(simulate(schedule, costs).makespan, 1 + 18 + 2) << "a slow rank computes slowly";
}

TEST(ReplicaStream, CommunicatesInOrderBesideCompute) {
  Costs costs = sharing(Shard::kParameters, 2);
  costs.replica_link = {.latency = 0.5, .bandwidth = 1};
  const Schedule schedule = schedule_from("0F0,1F0,1B0,0B0\n");
  const Simulation s = simulate(schedule, costs, {.keep_times = true});
  EXPECT_DOUBLE_EQ(s.times[0][1].start, 9) << "after both gathers";
  EXPECT_DOUBLE_EQ(s.times[0][3].start, 15) << "while the other stage's gradients are reduced";
  EXPECT_DOUBLE_EQ(s.makespan, 24) << "two reductions after 15";
  EXPECT_DOUBLE_EQ(s.hidden_communication(), 1 - (4.5 + 2.5 + 5) / 18);
  const CriticalSummary summary = summarize(critical_path(schedule, s), 1);
  EXPECT_DOUBLE_EQ(summary.parameters, 7);
  EXPECT_DOUBLE_EQ(summary.compute, 12);
  EXPECT_DOUBLE_EQ(summary.messages, 0);
}

TEST(ReplicaStream, GathersOnceIfParametersStay) {
  Costs costs = sharing(Shard::kGradients, 2);
  costs.replica_link = {.latency = 0.5, .bandwidth = 1};
  const char* csv = "0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0RESHARD\n";
  EXPECT_DOUBLE_EQ(simulate(schedule_from(csv), costs).ranks[0].communication, 2 * 4.5);
  costs.shard = Shard::kParameters;
  EXPECT_DOUBLE_EQ(simulate(schedule_from(csv), costs).ranks[0].communication, 3 * 4.5);
}

TEST(ReplicaStream, BuffersLastAsLongAsTheCommunication) {
  Costs costs = sharing(Shard::kOptimizer, 4);
  costs.stages[0].unshard_memory = 100;
  costs.stages[0].unshard = 3;
  EXPECT_THAT(levels("0F0,0B0\n", costs), ElementsAre(114, 24, 32, 16)) << "F begins when the buffers are gone";
}

TEST(ReplicaStream, ALoweredScheduleIsTheSame) {
  Costs costs = with_recompute(sharing(Shard::kParameters, 4), true);
  costs.stages[0].reduce_memory = 8;
  costs.link.latency = 0.5;
  costs.replica_link = {.latency = 0.1, .bandwidth = 4};
  for (const Generator* generator : generators()) {
    Schedule schedule = make_schedule(generator->name, {.ranks = 3, .microbatches = 7});
    const Simulation before = simulate(schedule, costs);
    run_passes(schedule, kShardedLowering);
    const Simulation after = simulate(schedule, costs);
    EXPECT_DOUBLE_EQ(before.makespan, after.makespan) << generator->name;
    EXPECT_DOUBLE_EQ(before.peak_memory(), after.peak_memory()) << generator->name;
    EXPECT_DOUBLE_EQ(before.hidden_communication(), after.hidden_communication()) << generator->name;
  }
}

TEST(ReplicaStream, RefusesWhatCannotBeShared) {
  Costs costs = full_costs();
  costs.shard = Shard::kGradients;
  EXPECT_THAT(message_of([&] { simulate(schedule_from("0F0,0B0\n"), costs); }), HasSubstr("shard is gradients"));
  EXPECT_THAT(message_of([&] { with_replicas(costs, 1, Shard::kOptimizer); }), HasSubstr("share optimizer"));
  EXPECT_THROW(with_replicas(costs, 0, Shard::kNone), InvalidArgument);
  costs.stages[0].input_memory = 0;
  EXPECT_THAT(message_of([&] { with_recompute(costs, true); }), HasSubstr("input_memory"));
}

TEST(ReplicaStream, MemoryIsReadableInBytes) {
  Costs costs;
  EXPECT_EQ(memory_text(costs, 1536), "1536");
  costs.memory_in_bytes = true;
  EXPECT_EQ(memory_text(costs, 100), "100 B");
  EXPECT_EQ(memory_text(costs, 1.5 * 1024 * 1024 * 1024), "1.50 GiB");
}

}  // namespace
}  // namespace stagecraft
