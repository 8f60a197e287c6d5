// Published figures, reproduced by generator and simulator.

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "full_backward.h"
#include "interleaved_rule.h"
#include "published.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/plan/planner.h"
#include "stagecraft/schedule/generator.h"
#include "stagecraft/sim/simulator.h"
#include "support/every_setting.h"

namespace stagecraft::figures {
namespace {

/// Half a unit in the fourth digit, plus a margin for rounding.
constexpr double kFourDigits = 0.5e-4 + 1e-9;

double bubble(const char* name, int p, int m, const Costs& costs, int stages_per_rank = 1) {
  const Schedule schedule = make_schedule(name, {.ranks = p, .stages_per_rank = stages_per_rank, .microbatches = m});
  return simulate(schedule, costs).bubble_span();
}

Schedule interleaved(int p, int m, int v) {
  return make_schedule("Interleaved1F1B", {.ranks = p, .stages_per_rank = v, .microbatches = m});
}

/// Idle time from a bubble rate. The rule of the published 1F1B-I leaves out one lap of messages.
double idle_of(double bubble_rate, double work) { return work / (1 - bubble_rate) - work; }

/// The rows that take little time, or all of them.
template <typename Rows>
std::vector<typename Rows::value_type> some_of(const Rows& rows) {
  std::vector<typename Rows::value_type> some;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(some),
               [](const auto& row) { return every_setting() || row.p * row.m <= 16 * 48; });
  return some;
}

class ZeroBubbleFigures : public testing::TestWithParam<ZeroBubbleRow> {};

TEST_P(ZeroBubbleFigures, OneFOneB) {
  const auto& row = GetParam();
  EXPECT_NEAR(bubble("1F1B", row.p, row.m, costs_of(row.times)), row.one_f_one_b, kFourDigits);
}

TEST_P(ZeroBubbleFigures, Interleaved) {
  const auto& row = GetParam();
  const int v = row.interleaved_stages;
  const Costs costs = costs_of(row.times, v);
  const Schedule known = interleaved(row.p, row.m, v);
  const double published = interleaved_by_rule(known, costs);
  EXPECT_NEAR(published, row.interleaved, kFourDigits);
  const double work = row.m * (row.times.forward + row.times.backward_input + row.times.backward_weight);
  const double exact = simulate(known, costs).bubble_span();
  EXPECT_NEAR(idle_of(exact, work), idle_of(published, work) + row.p * row.times.comm, 1e-6);
}

TEST_P(ZeroBubbleFigures, ZeroBubbleInOneFOneBsMemory) {
  const auto& row = GetParam();
  const Costs costs = costs_of(row.times, 1, row.weight_gradient_memory());
  const Schedule schedule = make_schedule("ZB-H1", {.ranks = row.p, .microbatches = row.m});
  const Simulation simulation = simulate(schedule, costs);
  EXPECT_NEAR(simulation.bubble_span(), row.zb_1p, kFourDigits);
  EXPECT_LE(simulation.peak_memory(), row.p + 1e-9);
}

INSTANTIATE_TEST_SUITE_P(, ZeroBubbleFigures, testing::ValuesIn(some_of(kZeroBubble)), [](const auto& row) {
  std::string model(row.param.model);
  model.erase(std::remove(model.begin(), model.end(), '.'), model.end());
  return "Model" + model + "Microbatches" + std::to_string(row.param.m);
});

class ZeroBubbleVFigures : public testing::TestWithParam<ZeroBubbleVRow> {
 protected:
  /// Columns with one stage per rank use doubled times.
  static Times doubled(Times t) { return {2 * t.forward, 2 * t.backward_input, 2 * t.backward_weight, t.comm}; }
};

TEST_P(ZeroBubbleVFigures, OneFOneB) {
  const auto& row = GetParam();
  EXPECT_NEAR(bubble("1F1B", row.p, row.m, costs_of(doubled(row.times))), row.one_f_one_b, kFourDigits);
}

TEST_P(ZeroBubbleVFigures, Interleaved) {
  const auto& row = GetParam();
  EXPECT_NEAR(interleaved_by_rule(interleaved(row.p, row.m, 2), costs_of(row.times)), row.interleaved, kFourDigits);
}

TEST_P(ZeroBubbleVFigures, ZeroBubbleInOneFOneBsMemory) {
  const auto& row = GetParam();
  EXPECT_NEAR(bubble("ZB-H1", row.p, row.m, costs_of(doubled(row.times))), row.zb_h1, kFourDigits);
}

INSTANTIATE_TEST_SUITE_P(, ZeroBubbleVFigures, testing::ValuesIn(some_of(kZeroBubbleV)), [](const auto& row) {
  return "Ranks" + std::to_string(row.param.p) + "Microbatches" + std::to_string(row.param.m);
});

TEST(Figures, DualPipeV) {
  Costs costs;
  costs.stages = {StageCosts{.forward = 1, .backward_input = 1, .backward_weight = 1, .backward = 2}};
  const Schedule schedule = make_schedule("DualPipeV", {.ranks = 4, .microbatches = 10});
  const Simulation simulation = simulate(schedule, costs);
  EXPECT_DOUBLE_EQ(simulation.makespan, 66);
  for (const RankOutcome& rank : simulation.ranks) {
    EXPECT_DOUBLE_EQ(simulation.makespan - rank.busy, 6);
    EXPECT_DOUBLE_EQ(rank.peak_memory, 9);
  }
}

/// With little effort; `make figures` searches all rows fully.
PlanResult planned(int p, int m, const Costs& costs, PlacementChoice placement, double limit, double effort,
                   int stages_per_rank = 0) {
  PlanRequest request;
  request.ranks = p;
  request.microbatches = m;
  request.costs = costs;
  request.placement = placement;
  request.memory_limit = limit;
  request.effort = effort;
  request.stages_per_rank = stages_per_rank;
  request.time_budget = 100;
  PlanResult result = plan(request);
  EXPECT_TRUE(verify(result.schedule).ok());
  EXPECT_LE(result.simulation.peak_memory(), limit + 1e-6);
  return result;
}

TEST(PlannerFigures, UnitCostsMeetTheBound) {
  Costs costs;
  for (const auto& [p, k] : {std::pair{4, 4}, {4, 5}, {4, 6}, {4, 8}, {8, 8}, {8, 10}, {8, 12}, {8, 16}}) {
    const PlanResult result = planned(p, 3 * p, costs, PlacementChoice::kV, k, 0.5);
    const double idle = result.simulation.span - 6.0 * 3 * p;
    EXPECT_DOUBLE_EQ(idle, std::max(0, 6 * p - 1 - 3 * k)) << p << " ranks, " << k << " activations";
  }
}

TEST(PlannerFigures, ZeroBubbleInTwiceOneFOneBsMemory) {
  for (const std::size_t i : {0, 1, 3}) {
    const auto& row = kZeroBubble[i];
    const Costs costs = costs_of(row.times, 1, row.weight_gradient_memory());
    const PlanResult result = planned(row.p, row.m, costs, PlacementChoice::kLinear, 2 * row.p, i == 0 ? 1 : 0.05);
    EXPECT_LE(result.simulation.bubble_span(), row.zb_2p + kFourDigits) << i;
  }
}

TEST(PlannerFigures, ZeroBubbleV) {
  const auto& row = kZeroBubbleV[3];
  const PlanResult result = planned(row.p, row.m, costs_of(row.times), PlacementChoice::kV, 2 * row.p, 0.05);
  EXPECT_LE(result.simulation.bubble_span(), row.zb_v + kFourDigits);
}

TEST(PlannerFigures, ControllableMemory) {
  for (const std::size_t i : {0, 1, 2}) {
    const auto& row = kControllableMemory[i];
    const PlanResult result = planned(row.p, row.m, costs_of(row.times), PlacementChoice::kV, row.limit, 0.06);
    EXPECT_LE(result.simulation.bubble_span(), row.best_known + kFourDigits) << i;
  }
}

/// Expects a plan that waits for every message, has 1F1B-I's stages and full backwards, needs no more memory, and is no
/// worse than the published cell.
void expect_interleaved_is_attained(int p, int m, int v, const Costs& costs, double published) {
  const double limit = simulate(interleaved(p, m, v), costs).peak_memory();
  const PlanResult result = planned(p, m, with_full_backwards(costs), PlacementChoice::kLoop, limit, 0.05, v);
  const Schedule schedule = with_full_backwards(result.schedule);
  EXPECT_TRUE(verify(schedule).ok());
  const Simulation simulation = simulate(schedule, costs);
  EXPECT_LE(simulation.bubble_span(), published + kFourDigits);
  EXPECT_LE(simulation.peak_memory(), limit + 1e-6);
}

TEST_P(ZeroBubbleFigures, InterleavedIsAttainedWaitingForEveryMessage) {
  const auto& row = GetParam();
  const int v = row.interleaved_stages;
  expect_interleaved_is_attained(row.p, row.m, v, costs_of(row.times, v), row.interleaved);
}

TEST_P(ZeroBubbleVFigures, InterleavedIsAttainedWaitingForEveryMessage) {
  const auto& row = GetParam();
  expect_interleaved_is_attained(row.p, row.m, 2, costs_of(row.times), row.interleaved);
}

TEST_P(ZeroBubbleFigures, ThePlannerFindsZb1pAndProvesIt) {
  const auto& row = GetParam();
  const Costs costs = costs_of(row.times, 1, row.weight_gradient_memory());
  const PlanResult result = planned(row.p, row.m, costs, PlacementChoice::kLinear, row.p, 0.2);
  EXPECT_NEAR(result.simulation.bubble_span(), row.zb_1p, kFourDigits);
  EXPECT_NEAR(result.lower_bound_span, result.simulation.span, 1e-6 * result.simulation.span);
}

}  // namespace
}  // namespace stagecraft::figures
