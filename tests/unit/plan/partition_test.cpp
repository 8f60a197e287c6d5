#include "stagecraft/plan/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/passes/verify.h"
#include "support/message_of.h"

namespace stagecraft {
namespace {

using testing::ElementsAre;

Layer layer(double forward) {
  Layer made;
  made.costs = {
      .forward = forward, .backward_input = forward, .backward_weight = forward / 2, .backward = 1.5 * forward};
  made.costs.forward_bytes = forward;
  made.costs.backward_bytes = 10 * forward;
  return made;
}

std::vector<Layer> layers(std::initializer_list<double> forwards) {
  std::vector<Layer> made;
  for (const double forward : forwards) made.push_back(layer(forward));
  return made;
}

TEST(Partition, TheMostLoadedRankHasAsLittleAsPossible) {
  EXPECT_THAT(balanced_cuts(layers({1, 1, 1, 3, 3, 1, 1, 1}), Placement::linear(4), {}), ElementsAre(0, 3, 4, 5, 8));
  EXPECT_THAT(balanced_cuts(layers({9, 1, 1, 1}), Placement::linear(2), {}), ElementsAre(0, 1, 4));
  Costs uneven;
  uneven.rank_slowdown = {3, 1};
  EXPECT_THAT(balanced_cuts(layers({1, 1, 1, 1}), Placement::linear(2), uneven), ElementsAre(0, 1, 4));
  EXPECT_THAT(message_of([] {
                balanced_cuts(layers({1, 1}), Placement::linear(3), {});
              }),
              testing::HasSubstr("2 layers cannot make 3 stages"));
}

TEST(Partition, InAVTheSumOfARanksStagesCounts) {
  // Rank 0 has the first and the last stage: a heavy head is made up for by a light first stage.
  const Cuts cuts = balanced_cuts(layers({1, 1, 1, 1, 1, 1, 4}), Placement::v(2, 2), {});
  const Costs costs = costs_of_stages(layers({1, 1, 1, 1, 1, 1, 4}), cuts, {});
  EXPECT_EQ(costs.stages[0].forward + costs.stages[3].forward, 5);
  EXPECT_EQ(costs.stages[1].forward + costs.stages[2].forward, 5);
}

TEST(Partition, StagesAreSumsAndSendWhatTheirOuterLayersSend) {
  const Costs costs = costs_of_stages(layers({1, 2, 3}), {0, 2, 3}, {});
  ASSERT_EQ(costs.stages.size(), 2U);
  EXPECT_EQ(costs.stages[0].forward, 3);
  EXPECT_EQ(costs.stages[0].forward_bytes, 2);
  EXPECT_EQ(costs.stages[0].activation_memory, 2);
  EXPECT_EQ(costs.stages[1].backward_bytes, 30);
  EXPECT_THROW(costs_of_stages(layers({1, 2}), {0, 0, 2}, {}), InvalidArgument);
}

TEST(Partition, StagesHoldTheParametersOfTheirLayersAndTheInputOfTheFirst) {
  std::vector<Layer> model = layers({1, 2, 3});
  for (Layer& one : model) {
    one.costs.parameter_memory = one.costs.forward;
    one.costs.optimizer_memory = 2 * one.costs.forward;
    one.costs.reduce_memory = one.costs.forward;
    one.costs.input_memory = 10 * one.costs.forward;
    one.costs.recompute = true;
  }
  const Costs costs = costs_of_stages(model, {0, 2, 3}, {});
  EXPECT_EQ(costs.stages[0].parameter_memory, 3);
  EXPECT_EQ(costs.stages[0].optimizer_memory, 6);
  EXPECT_EQ(costs.stages[0].reduce_memory, 3);
  EXPECT_EQ(costs.stages[0].input_memory, 10);
  EXPECT_EQ(costs.stages[1].input_memory, 30);
  EXPECT_TRUE(costs.stages[1].recompute);
  model[1].costs.recompute = false;
  EXPECT_THAT(message_of([&] { costs_of_stages(model, {0, 2, 3}, {}); }), testing::HasSubstr("all layers or to none"));
}

TEST(Partition, CutsAndScheduleTogetherAreNoWorseThanBalancedCutsAlone) {
  const std::vector<Layer> model = layers({3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4});
  PlanRequest request;
  request.ranks = 3;
  request.microbatches = 6;
  request.placement = PlacementChoice::kV;
  request.costs.link.latency = 0.3;
  request.effort = 0.02;
  const PartitionPlan together = plan_partition(model, request);
  EXPECT_TRUE(verify(together.plan.schedule).ok());
  EXPECT_EQ(together.cuts.back(), 12);
  request.stages_per_rank = 2;
  request.costs = costs_of_stages(model, balanced_cuts(model, Placement::v(3, 2), request.costs), request.costs);
  EXPECT_LE(together.plan.simulation.span, plan(request).simulation.span * 1.001);
}

TEST(Partition, ManyLayersAreRefusedBeforeTheyTakeTime) {
  const std::vector<Layer> layers(100'000);
  EXPECT_THAT(message_of([&] { balanced_cuts(layers, Placement::linear(8), {}); }),
              testing::HasSubstr("100000 layers are too many to be cut into 8 stages, the most is 22360"));
}

TEST(Partition, TheTimeBudgetIsThatOfAllPlansTogether) {
  PlanRequest request;
  request.ranks = 8;
  request.microbatches = 64;
  request.placement = PlacementChoice::kLinear;
  request.time_budget = 1e-3;
  const PartitionPlan found = plan_partition(std::vector<Layer>(64), request);
  EXPECT_FALSE(found.plan.finished);
  EXPECT_EQ(found.cuts.size(), 9U);
  request.time_budget = -1;
  EXPECT_THAT(message_of([&] { plan_partition(std::vector<Layer>(64), request); }),
              testing::HasSubstr("time budget of -1"));
}

}  // namespace
}  // namespace stagecraft
