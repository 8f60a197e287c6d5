// Memory limits that count more than activations.

#include "feasibility.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/passes/verify.h"
#include "stagecraft/sim/what_if.h"
#include "support/message_of.h"

namespace stagecraft {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Parameters and gradients 4, optimizer 8, activations 1, for every stage.
PlanRequest full_request(int ranks, int stages_per_rank, double limit) {
  PlanRequest request;
  request.ranks = ranks;
  request.microbatches = 8;
  request.placement = PlacementChoice::kLoop;
  request.stages_per_rank = stages_per_rank;
  request.costs.stages = {StageCosts{.forward = 2,
                                     .backward_input = 2.2,
                                     .backward_weight = 1.5,
                                     .backward = 3.7,
                                     .parameter_memory = 4,
                                     .gradient_memory = 4,
                                     .optimizer_memory = 8}};
  request.memory_limit = limit;
  request.effort = 0.0005;
  request.threads = 1;
  return request;
}

std::string refusal_of(const PlanRequest& request) {
  return message_of([&] { plan(request); });
}

TEST(Feasibility, TheLeastIsOneMicrobatchAtATimeWithAllThatIsHeld) {
  EXPECT_DOUBLE_EQ(smallest_memory_limit(full_request(4, 1, 0).costs, Placement::linear(4)), 4 + 4 + 8 + 1);
  EXPECT_DOUBLE_EQ(smallest_memory_limit(full_request(2, 2, 0).costs, Placement::loop(2, 2)), 2 * 17);
  EXPECT_DOUBLE_EQ(detail::least_memory(full_request(2, 2, 0).costs, Placement::loop(2, 2), 1), 2 * 12 + 1 + 4 + 4)
      << "the last backward has all gradients, but the activations of one stage";
  EXPECT_DOUBLE_EQ(smallest_memory_limit(Costs(), Placement::linear(4)), 1);
}

TEST(Feasibility, ARefusalSaysWhatIsMissingAndWhatWouldHelp) {
  PlanRequest request = full_request(4, 1, 16);
  EXPECT_THAT(
      refusal_of(request),
      AllOf(HasSubstr("a memory limit of 16 is too small by 1: one microbatch at a time needs 17"),
            HasSubstr("parameters 4, gradients 4, optimizer 8, activations 1"),
            HasSubstr("within the limit: shard parameters with 2 replicas needs 15"), Not(HasSubstr("recompute"))));
  request.costs.replicas = 2;
  EXPECT_THAT(refusal_of(request), HasSubstr("within the limit: shard optimizer needs 16"));
  request.memory_limit = 13;
  EXPECT_THAT(refusal_of(request), HasSubstr("neither sharding nor recompute would do"));
  request.costs.replicas = 16;
  EXPECT_THAT(refusal_of(request), AllOf(HasSubstr("too small by 4"), HasSubstr("shard optimizer needs 9.75")));
  try {
    plan(request);
    FAIL() << "it is too small";
  } catch (const InfeasibleLimit& error) {
    EXPECT_DOUBLE_EQ(error.smallest(), 17);
  }
}

TEST(Feasibility, RecomputeHelpsWhereSeveralStagesHoldActivations) {
  PlanRequest request = full_request(2, 2, 38);
  request.costs.stages[0].activation_memory = 4;
  request.costs.stages[0].weight_gradient_memory = 4;
  request.costs.stages[0].input_memory = 1;
  EXPECT_THAT(refusal_of(request), AllOf(HasSubstr("needs 40"), HasSubstr("within the limit: recompute needs 37")));
  request.costs = with_recompute(request.costs, true);
  const PlanResult result = plan(request);
  EXPECT_LE(result.simulation.peak_memory(), 38);
}

TEST(Feasibility, BytesAreShownWithUnits) {
  PlanRequest request = full_request(4, 1, 16);
  request.costs.memory_in_bytes = true;
  EXPECT_THAT(refusal_of(request), AllOf(HasSubstr("limit of 16 B is too small by 1 B"), HasSubstr("optimizer 8 B")));
}

TEST(Feasibility, PlansKeepTheLimitWhateverIsHeld) {
  for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
    for (const bool recompute : {false, true}) {
      for (const int stages_per_rank : {1, 5}) {
        PlanRequest request = full_request(2, stages_per_rank, 0);
        request.microbatches = 5;
        request.effort = 1e-4;
        StageCosts& stage = request.costs.stages[0];
        stage.input_memory = 0.25;
        stage.master_memory = 6;
        stage.reduce_memory = 4;
        stage.buffer_memory = 0.125;
        request.costs = with_recompute(with_replicas(request.costs, 2, shard), recompute);
        request.costs.replica_link.bandwidth = 3;
        const double least = smallest_memory_limit(request.costs, Placement::loop(request.ranks, stages_per_rank));
        for (const double more : {0.0, 2.5}) {
          request.memory_limit = least + more;
          const PlanResult result = plan(request);
          const std::string what = std::string(shard_name(shard)) + (recompute ? ", recompute, " : ", ") +
                                   std::to_string(stages_per_rank) + " stages per rank, " + std::to_string(more) +
                                   " more";
          EXPECT_TRUE(verify(result.schedule).ok()) << what;
          EXPECT_LE(result.simulation.peak_memory(), request.memory_limit + 1e-6) << what;
          EXPECT_GE(result.simulation.span, result.lower_bound_span * (1 - 1e-9)) << what;
        }
      }
    }
  }
}

TEST(Feasibility, RoomForActivationsIsWhatParametersLeave) {
  // With 16 of other memory, a limit of 20 leaves what 4 leaves without.
  PlanRequest request = full_request(4, 1, 20);
  const PlanResult with = plan(request);
  request.costs.stages[0].parameter_memory = 0;
  request.costs.stages[0].gradient_memory = 0;
  request.costs.stages[0].optimizer_memory = 0;
  request.memory_limit = 4;
  const PlanResult without = plan(request);
  EXPECT_LE(with.simulation.span, without.simulation.span * (1 + 1e-9)) << "gradients come later than the first F";
  EXPECT_LE(with.simulation.peak_memory(), 20 + 1e-6);
}

TEST(Feasibility, TheBoundCountsNoForwardTwice) {
  PlanRequest request = full_request(1, 1, 0);
  request.costs.stages[0].input_memory = 0.5;
  request.costs = with_recompute(request.costs, true);
  const PlanResult result = plan(request);
  EXPECT_DOUBLE_EQ(result.simulation.span, 8 * (2 + 3.7)) << "every F is followed by its B";
  EXPECT_TRUE(result.proven);
}

}  // namespace
}  // namespace stagecraft
