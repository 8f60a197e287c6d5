#include "stagecraft/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>

#include "stagecraft/passes/pass.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/csv.h"
#include "support/message_of.h"

namespace stagecraft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Costs costs_of(double forward, double input, double weight, double latency) {
  Costs costs;
  costs.stages[0] = {
      .forward = forward, .backward_input = input, .backward_weight = weight, .backward = input + weight};
  costs.link.latency = latency;
  return costs;
}

PlanRequest request(int ranks, int microbatches, PlacementChoice placement, double limit, double effort = 0.01) {
  PlanRequest r;
  r.ranks = ranks;
  r.microbatches = microbatches;
  r.costs = costs_of(2, 2.2, 1.5, 0.1);
  r.placement = placement;
  r.memory_limit = limit;
  r.effort = effort;
  r.threads = 1;
  return r;
}

TEST(Planner, EveryPlanRunsAndKeepsItsLimit) {
  for (const int p : {1, 2, 3, 5, 8}) {
    for (const int m : {1, 2, 7, 17}) {
      for (const auto placement : {PlacementChoice::kLinear, PlacementChoice::kLoop, PlacementChoice::kV}) {
        const int v = placement == PlacementChoice::kLinear ? 1 : 2;
        for (const double limit : {0.0, 1.0 * v, 2.0 * v, 1.0 * v * p}) {
          const PlanResult result = plan(request(p, m, placement, limit, 0.0005));
          const std::string what = std::to_string(p) + " ranks, " + std::to_string(m) + " microbatches, limit " +
                                   std::to_string(limit) + ", " + std::string(result.schedule.placement.style());
          EXPECT_TRUE(verify(result.schedule).ok()) << what;
          Schedule lowered = Schedule::from_rows(parse_csv(to_csv(result.schedule)));
          EXPECT_EQ(lowered, result.schedule) << what;
          run_passes(lowered);
          EXPECT_TRUE(verify(lowered).ok()) << what;
          if (limit > 0) {
            EXPECT_LE(result.simulation.peak_memory(), limit + 1e-6) << what;
          }
          EXPECT_GE(result.simulation.span, result.lower_bound_span * (1 - 1e-9)) << what;
        }
      }
    }
  }
}

TEST(Planner, BeatsOrEqualsEveryKnownScheduleThatFits) {
  for (const double limit : {0.0, 12.0, 8.0}) {
    const PlanResult result = plan(request(6, 18, PlacementChoice::kV, limit));
    ASSERT_FALSE(result.named.empty());
    for (const NamedOutcome& named : result.named) {
      if (!named.fits) continue;
      EXPECT_LE(result.simulation.span, named.simulation.span * (1 + 1e-12)) << named.name;
    }
  }
}

TEST(Planner, TheSameSeedGivesTheSameScheduleOnAnyNumberOfThreads) {
  PlanRequest r = request(6, 14, PlacementChoice::kV, 8);
  r.seed = 3;
  const PlanResult one = plan(r);
  r.threads = 2;
  const PlanResult two = plan(r);
  EXPECT_TRUE(one.finished);
  EXPECT_EQ(one.schedule, two.schedule);
  EXPECT_EQ(one.trials, two.trials);
}

TEST(Planner, UnequalStagesAndRanks) {
  PlanRequest r = request(4, 10, PlacementChoice::kLinear, 6);
  r.costs.stages.assign(4, r.costs.stages[0]);
  r.costs.stages[3].forward = 5;
  r.costs.rank_slowdown = {1, 1.5, 1, 1};
  const PlanResult result = plan(r);
  EXPECT_TRUE(verify(result.schedule).ok());
  EXPECT_LE(result.simulation.peak_memory(), 6 + 1e-6);
}

TEST(Planner, AnyPlacementTakesTheBetter) {
  PlanRequest r = request(4, 8, PlacementChoice::kAny, 8);
  r.stages_per_rank = 2;
  const PlanResult any = plan(r);
  r.placement = PlacementChoice::kLoop;
  EXPECT_LE(any.simulation.span, plan(r).simulation.span);
}

TEST(Planner, StopsWhenAskedWithTheBestSoFar) {
  PlanRequest r = request(16, 64, PlacementChoice::kV, 20, 10);
  std::atomic<int> asked = 0;
  r.stop = [&] { return ++asked > 50; };
  const PlanResult result = plan(r);
  EXPECT_FALSE(result.finished);
  EXPECT_TRUE(verify(result.schedule).ok());
  r.stop = nullptr;
  r.time_budget = 0.3;
  const PlanResult timed = plan(r);
  EXPECT_FALSE(timed.finished);
  EXPECT_LT(timed.seconds, 20);
}

TEST(Planner, ReportsProgress) {
  PlanRequest r = request(4, 40, PlacementChoice::kV, 5);
  double last = 0;
  int calls = 0;
  r.progress = [&](const PlanProgress& progress) {
    EXPECT_GE(progress.part, last);
    last = progress.part;
    ++calls;
  };
  plan(r);
  EXPECT_GT(calls, 4);
}

TEST(Planner, TellsOfEachBetterScheduleAndOfTheResultLast) {
  for (const double limit : {0.0, 9.0}) {
    PlanRequest r = request(4, 9, PlacementChoice::kAny, limit);
    r.stages_per_rank = 2;
    const PlanResult silent = plan(r);
    std::vector<double> spans;
    Schedule last;
    r.improved = [&](const Schedule& schedule, const Simulation& simulation) {
      require_valid(schedule);
      EXPECT_TRUE(limit == 0 || simulation.peak_memory() <= limit + 1e-6);
      spans.push_back(simulation.span);
      last = schedule;
    };
    const PlanResult told = plan(r);
    EXPECT_EQ(to_csv(told.schedule), to_csv(silent.schedule));
    ASSERT_FALSE(spans.empty());
    for (std::size_t i = 1; i < spans.size(); ++i) EXPECT_LT(spans[i], spans[i - 1]);
    EXPECT_NEAR(spans.back(), told.simulation.span, 1e-9);
    EXPECT_EQ(last.rows.size(), told.schedule.rows.size());
  }
}

TEST(Planner, AnImpossibleLimitNamesTheSmallestThatIsPossible) {
  PlanRequest r = request(4, 8, PlacementChoice::kV, 1.5);
  EXPECT_THAT(message_of([&] { plan(r); }), AllOf(HasSubstr("1.5 is too small"), HasSubstr("2 here")));
  try {
    plan(r);
    FAIL();
  } catch (const InfeasibleLimit& error) {
    r.memory_limit = error.smallest();
  }
  EXPECT_LE(plan(r).simulation.peak_memory(), r.memory_limit + 1e-6);
}

TEST(Planner, WaitingMessagesCountTowardsTheLimit) {
  for (const auto placement : {PlacementChoice::kLinear, PlacementChoice::kV}) {
    for (const double buffer : {0.3, 1.0}) {
      for (const double limit : {3.1, 5.0, 8.0}) {
        PlanRequest r = request(4, 10, placement, limit, 0.02);
        r.costs.stages[0].buffer_memory = buffer;
        const PlanResult result = plan(r);
        EXPECT_LE(result.simulation.peak_memory(), limit + 1e-6) << buffer << " " << limit;
        EXPECT_TRUE(verify(result.schedule).ok());
      }
    }
  }
}

TEST(Planner, ALimitThatMessagesMakeImpossibleNamesTheSmallestFound) {
  PlanRequest r = request(4, 8, PlacementChoice::kV, 2);
  r.costs.stages[0].buffer_memory = 0.5;
  EXPECT_THAT(message_of([&] { plan(r); }), AllOf(HasSubstr("messages that wait included"), HasSubstr("2.5")));
  r.memory_limit = 2.5;
  EXPECT_LE(plan(r).simulation.peak_memory(), 2.5 + 1e-6);
}

TEST(Planner, TheSearchSeesWhatTheSimulatorSees) {
  PlanRequest r = request(4, 12, PlacementChoice::kV, 8, 0.02);
  r.costs.stages[0].forward_bytes = 3;
  r.costs.stages[0].backward_bytes = 4;
  r.costs.link.bandwidth = 2;
  for (const bool overlap : {true, false}) {
    r.costs.overlap_communication = overlap;
    double searched = 0;
    r.progress = [&](const PlanProgress& progress) { searched = progress.span; };
    const PlanResult result = plan(r);
    EXPECT_LE(result.simulation.span, searched * (1 + 1e-9)) << "links are busier than the search knew";
    for (const NamedOutcome& named : result.named) {
      if (named.fits) {
        EXPECT_LE(result.simulation.span, named.simulation.span * (1 + 1e-12)) << named.name;
      }
    }
  }
}

TEST(Planner, TheTimeBudgetBoundsTheLargestPlans) {
  PlanRequest r = request(64, 512, PlacementChoice::kV, 128, 1);
  r.time_budget = 1e-3;
  const double least = plan(r).seconds;  // without a search
  r.time_budget = 3;
  const PlanResult result = plan(r);
  EXPECT_FALSE(result.finished);
  EXPECT_LT(result.seconds, 2 * (least + r.time_budget));
}

TEST(Planner, SizesAreRefusedBeforeMemoryIsTaken) {
  const auto refused = [](int ranks, int microbatches, int stages_per_rank, bool exact = false) {
    PlanRequest r = request(ranks, microbatches, PlacementChoice::kLoop, 0);
    r.stages_per_rank = stages_per_rank;
    r.exact = exact;
    return message_of([&] { plan(r); });
  };
  constexpr int kHuge = std::numeric_limits<int>::max();
  EXPECT_THAT(refused(1'000'000'000, 8, 1), HasSubstr("1000000000 ranks is too large, the most is 1024"));
  EXPECT_THAT(refused(8, 8, 100'000'000), HasSubstr("100000000 stages per rank is too large, the most is 1024"));
  EXPECT_THAT(refused(8, kHuge, 1), HasSubstr("use at most 87381 microbatches"));
  EXPECT_THAT(refused(kHuge, kHuge, kHuge), HasSubstr("too large"));
  EXPECT_THAT(refused(8, 200, 1, true), HasSubstr("plan without --exact"));
}

TEST(Planner, TheTimeBudgetCountsFromTheFirstScheduleOn) {
  // One trial takes longer than the budget, so the result is the best known schedule.
  PlanRequest r = request(512, 1024, PlacementChoice::kLinear, 0);
  r.time_budget = 1e-3;
  const PlanResult result = plan(r);
  EXPECT_FALSE(result.finished);
  EXPECT_EQ(result.trials, 0);
  EXPECT_TRUE(verify(result.schedule).ok());
}

TEST(Planner, OneKnownScheduleIsEnoughWhereItIsToStopAtOnce) {
  PlanRequest r = request(4, 8, PlacementChoice::kAny, 0);
  r.stages_per_rank = 2;
  r.stop = [] { return true; };
  const PlanResult result = plan(r);
  EXPECT_FALSE(result.finished);
  EXPECT_EQ(result.named.size(), 1U);
  EXPECT_TRUE(verify(result.schedule).ok());
}

TEST(Planner, RefusesWhatCannotBe) {
  const auto refused = [](auto change) {
    PlanRequest r = request(4, 8, PlacementChoice::kV, 0);
    change(r);
    return message_of([&] { plan(r); });
  };
  EXPECT_THAT(refused([](PlanRequest& r) { r.ranks = 0; }), HasSubstr("at least 1 rank, got 0"));
  EXPECT_THAT(refused([](PlanRequest& r) { r.microbatches = 0; }), HasSubstr("microbatch, got 0"));
  EXPECT_THAT(refused([](PlanRequest& r) { r.memory_limit = -1; }), HasSubstr("-1"));
  EXPECT_THAT(refused([](PlanRequest& r) { r.stages_per_rank = 1; }), HasSubstr("use linear"));
  EXPECT_THAT(refused([](PlanRequest& r) { r.time_budget = 0; }), HasSubstr("time budget of 0"));
  EXPECT_THAT(refused([](PlanRequest& r) { r.costs.stages.resize(7); }), HasSubstr("7 stages do not fit 4 ranks"));
}

TEST(LowerBound, MeetsTheFormulaOfOneStagePerRankInOneFOneBsMemory) {
  for (const int p : {2, 8, 16}) {
    const double idle = (p - 1) * (2 + 2.2 - 1.5 + 4 * 0.1);
    EXPECT_NEAR(span_lower_bound(costs_of(2, 2.2, 1.5, 0.1), Placement::linear(p), 3 * p, p), 3 * p * 5.7 + idle, 1e-9);
  }
}

}  // namespace
}  // namespace stagecraft
