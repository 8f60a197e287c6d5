#include "stagecraft/plan/exact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "stagecraft/core/random.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/plan/planner.h"
#include "support/every_setting.h"
#include "support/message_of.h"

namespace stagecraft {
namespace {

struct Case {
  int p;
  int m;
  bool v;
};

TEST(Exact, ThePlannerIsWithinOnePercentOnRandomCosts) {
  constexpr std::array kCases = {Case{4, 6, false}, Case{3, 5, false}, Case{2, 5, false}, Case{4, 4, false},
                                 Case{2, 2, true},  Case{3, 2, true},  Case{4, 1, true}};
  Random random;
  random.seed(7);
  int proven = 0;
  const int enough = every_setting() ? 50 : 14;
  for (int i = 0; proven < enough; ++i) {
    ASSERT_LT(i, enough + 15) << "the solver gives up too often";
    const Case& c = kCases[static_cast<std::size_t>(i) % kCases.size()];
    PlanRequest request;
    request.ranks = c.p;
    request.microbatches = c.m;
    request.placement = c.v ? PlacementChoice::kV : PlacementChoice::kLinear;
    StageCosts& stage = request.costs.stages[0];
    stage.forward = 1 + 4 * random.uniform();
    stage.backward_input = 1 + 4 * random.uniform();
    stage.backward_weight = 0.5 + 3 * random.uniform();
    stage.backward = stage.backward_input + stage.backward_weight;
    stage.weight_gradient_memory = random.uniform();
    request.costs.link.latency = random.uniform();
    request.memory_limit = (c.v ? 2 : 1) + std::floor(3 * random.uniform());
    request.effort = 0.05;
    const PlanResult planned = plan(request);
    const ExactResult exact =
        solve_exactly(request.costs, planned.schedule.placement, c.m, request.memory_limit, planned.simulation.span, 3);
    proven += exact.proven;
    EXPECT_TRUE(verify(exact.schedule).ok()) << i;
    EXPECT_LE(exact.simulation.peak_memory(), request.memory_limit + 1e-5) << i;
    EXPECT_LE(planned.simulation.span, 1.01 * exact.simulation.span) << i;
    if (!exact.proven) continue;
    EXPECT_GE(exact.simulation.span, planned.lower_bound_span * (1 - 1e-6)) << i << ": the lower bound is none";
  }
}

TEST(Exact, ClaimsNothingWhereMessagesShareALink) {
  // Messages take as long as computes and share a link one after the other, which the integer program does not model.
  Costs costs;
  costs.stages[0] = {.forward = 1, .backward_input = 1, .backward_weight = 0.1, .backward = 1.1};
  costs.stages[0].forward_bytes = costs.stages[0].backward_bytes = 3;
  costs.link.bandwidth = 1;
  const ExactResult exact = solve_exactly(costs, Placement::linear(2), 4, 0, 100, 10);
  EXPECT_TRUE(verify(exact.schedule).ok());
  EXPECT_FALSE(exact.proven);
  costs.link.bandwidth = 0;
  EXPECT_TRUE(solve_exactly(costs, Placement::linear(2), 4, 0, 100, 10).proven) << "without a limit it knows all";
}

TEST(Exact, SaysWhatItNeeds) {
  const Costs costs;
  EXPECT_THAT(message_of([&] { solve_exactly(costs, Placement::v(8, 2), 24, 16, 1000, 1); }),
              testing::HasSubstr("use fewer of both"));
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", "/nowhere", 1);
  const std::string message = message_of([&] { solve_exactly(costs, Placement::linear(2), 2, 0, 100, 1); });
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_THAT(message, testing::HasSubstr("coinor-cbc"));
}

}  // namespace
}  // namespace stagecraft
