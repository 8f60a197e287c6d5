// Schedule "auto": profile, plan, compare, decide.

#include <limits>

#include "autopilot.h"
#include "stagecraft/automatic/automatic.h"
#include "support/simulated_time.h"
#include "unit/runtime/pipeline_testing.h"

namespace stagecraft {
namespace {

using namespace pipeline_testing;
using testing::AllOf;
using Phase = AutoReport::Phase;

constexpr AutoOptions kQuick = {.profile_steps = 2, .time_budget = 0.5};
/// Steps until the decision: 2 and a warm-up step for each form of backward, then for each schedule.
constexpr int kAutoSteps = 2 * 2 * (2 + 1);

PipelineOptions automatic(int microbatches, const AutoOptions& options = kQuick) {
  return {.schedule = "auto", .microbatches = microbatches, .loss = mean_square, .automatic = options};
}

/// Makes actions of this kind take this many seconds.
void slow_down(Pipeline& pipeline, RankId rank, SimulatedClocks& clocks, ActionKind kind, double seconds) {
  pipeline.on(kind, [rank, &clocks, seconds](const ActionContext& context) {
    context.run();
    clocks.advance(rank, seconds);
  });
}

void slow_down(Pipeline& pipeline, RankId rank, SimulatedClocks& clocks) {
  for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight}) {
    slow_down(pipeline, rank, clocks, kind, 8);
  }
  slow_down(pipeline, rank, clocks, ActionKind::kBackward, 16);
}

TEST(Auto, FindsAFasterScheduleAndSwitches) {
  Sayings reports;
  run_in_simulated_time(3, kPatience, [&](World& world, SimulatedClocks& clocks) {
    Pipeline pipeline(world, {stage_for(world)}, automatic(4));
    slow_down(pipeline, world.rank(), clocks);
    const Tensor x = at::randn({4, 4});
    EXPECT_EQ(auto_report(pipeline).starting, "1F1B");
    EXPECT_EQ(auto_report(pipeline).phase, Phase::kProfiling);
    EXPECT_THAT(auto_report(pipeline).text(), HasSubstr("profiling 1F1B"));
    std::vector<Phase> phases;
    for (int step = 0; step < kAutoSteps + 1; ++step) {
      pipeline.step({x}, {.target = x});
      phases.push_back(auto_report(pipeline).phase);
    }
    EXPECT_EQ(phases[kAutoSteps / 2 - 2], Phase::kProfiling);
    EXPECT_EQ(phases[kAutoSteps / 2 - 1], Phase::kComparing);
    EXPECT_EQ(phases[kAutoSteps - 2], Phase::kComparing);
    EXPECT_EQ(phases[kAutoSteps - 1], Phase::kDecided);
    const AutoReport& report = auto_report(pipeline);
    reports.add(world.rank(), report.text());
    EXPECT_TRUE(report.switched) << report.text();
    // Before: six times a forward and a full backward. After: two forwards or two input parts, and four times all
    // three.
    EXPECT_NEAR(report.predicted_before, 6 * 24, 1e-9);
    EXPECT_NEAR(report.predicted_after, 16 + 4 * 24, 1e-9);
    EXPECT_NEAR(report.measured_before, report.predicted_before, 1e-9);
    EXPECT_NEAR(report.measured_after, report.predicted_after, 1e-9);
    ASSERT_EQ(report.costs.stages.size(), 3U);
    EXPECT_NEAR(report.costs.stages[1].backward_weight, 8, 1e-9);
    // No rank holds more than the largest peak of the starting schedule.
    EXPECT_EQ(report.memory_limit, 3);
    for (const int peak : peak_live_activations(pipeline.schedule())) EXPECT_LE(peak, 3);
    // The last rank splits. The first sends no gradient, so a full backward is as good there.
    bool splits = false;
    for (const Action& action : pipeline.schedule().rows[2]) splits |= action.kind() == ActionKind::kBackwardWeight;
    EXPECT_TRUE(splits) << "it does not run what it has switched to";
  });
  EXPECT_THAT(reports.of(0), AllOf(HasSubstr("switched from 1F1B to"), HasSubstr("gain")));
  EXPECT_EQ(reports.of(0), reports.of(1));
  EXPECT_EQ(reports.of(0), reports.of(2));
}

TEST(Auto, StaysWhenNothingIsFaster) {
  run_in_simulated_time(1, kPatience, [](World& world, SimulatedClocks& clocks) {
    Pipeline pipeline(world, {stage_for(world)}, automatic(2));
    slow_down(pipeline, world.rank(), clocks);
    slow_down(pipeline, world.rank(), clocks, ActionKind::kBackward, 8);  // splitting costs time
    const Tensor x = at::ones({4, 4});
    for (int step = 0; step < kAutoSteps; ++step) pipeline.step({x}, {.target = x});
    EXPECT_EQ(auto_report(pipeline).phase, Phase::kDecided);
    EXPECT_FALSE(auto_report(pipeline).switched);
    EXPECT_THAT(auto_report(pipeline).text(), HasSubstr("stays with 1F1B"));
  });
}

TEST(Auto, KeepsTheOldScheduleIfTheNewOneIsSlowerWhenMeasured) {
  run_in_simulated_time(3, kPatience, [](World& world, SimulatedClocks& clocks) {
    Pipeline pipeline(world, {stage_for(world)}, automatic(4));
    slow_down(pipeline, world.rank(), clocks);
    const Tensor x = at::ones({4, 4});
    for (int step = 0; step < kAutoSteps; ++step) {
      // Actions that were cheap while profiling become slow.
      if (auto_report(pipeline).phase == Phase::kComparing) {
        slow_down(pipeline, world.rank(), clocks, ActionKind::kBackwardWeight, 40);
      }
      pipeline.step({x}, {.target = x});
    }
    EXPECT_FALSE(auto_report(pipeline).switched) << auto_report(pipeline).text();
    EXPECT_LT(auto_report(pipeline).measured_gain(), 0);
    for (const Action& action : pipeline.schedule().rows[0]) EXPECT_NE(action.kind(), ActionKind::kBackwardWeight);
  });
}

TEST(Auto, MoreMemoryIsTakenOnlyWhereAllowed) {
  run_ranks(quick(2), [](World& world) {
    Pipeline as_before(world, {stage_for(world)}, automatic(8));
    EXPECT_EQ(auto_report(as_before).memory_limit, 2);
    AutoOptions more = kQuick;
    more.memory_limit = 5;
    EXPECT_EQ(auto_report(Pipeline(world, {stage_for(world)}, automatic(8, more))).memory_limit, 5);
    more.memory_limit = std::numeric_limits<double>::infinity();
    Pipeline unlimited(world, {stage_for(world)}, automatic(2, more));
    const Tensor x = at::ones({4, 4});
    for (int step = 0; step < kAutoSteps; ++step) unlimited.step({x}, {.target = x});
    EXPECT_EQ(auto_report(unlimited).phase, Phase::kDecided);
  });
}

TEST(Auto, TakesStagesWhereTheyAre) {
  const auto starting = [](int ranks, int per_rank) {
    std::string name;
    run_ranks(quick(ranks), [&](World& world) {
      std::vector<Stage> stages;
      for (const StageId stage : stages_here(world, "auto", per_rank))
        stages.push_back(make_stage(stage.value, layer()));
      const Pipeline pipeline(world, std::move(stages), automatic(4));
      if (world.is_first()) name = auto_report(pipeline).starting;
    });
    return name;
  };
  EXPECT_EQ(starting(2, 0), "1F1B");
  EXPECT_EQ(starting(2, 2), "1F1B-V");
  EXPECT_EQ(starting(2, 3), "Interleaved1F1B");
  EXPECT_EQ(starting(1, 1), "1F1B");
  EXPECT_EQ(starting(1, 3), "Interleaved1F1B");
  EXPECT_EQ(auto_placement(3, 2), Placement::v(3, 2));
  EXPECT_EQ(auto_placement(3, 4), Placement::loop(3, 4));
  run_ranks(quick(2), [&](World& world) {  // a V of three: no known schedule has it
    const Placement placement = Placement::v(2, 3);
    std::vector<Stage> stages;
    for (const StageId stage : placement.stages_of(world.rank())) {
      stages.push_back(make_stage(stage.value, layer()));
    }
    Pipeline pipeline(world, std::move(stages), automatic(3));
    const Tensor x = at::ones({3, 4});
    for (int step = 0; step < kAutoSteps; ++step) pipeline.step({x}, {.target = x});
    EXPECT_EQ(auto_report(pipeline).starting, "breadth-first");
    EXPECT_EQ(auto_report(pipeline).phase, Phase::kDecided);
  });
}

std::string refusal(const std::function<PipelineOptions(World&)>& options,
                    const std::function<std::vector<Stage>(World&)>& stages = {}) {
  Sayings said;
  run_ranks(quick(2), [&](World& world) {
    said.add(world.rank(), message_of([&] {
               Pipeline(world, stages ? stages(world) : std::vector<Stage>{stage_for(world)}, options(world));
             }));
  });
  EXPECT_FALSE(said.of(0).empty());
  EXPECT_FALSE(said.of(1).empty());
  return said.of(0);
}

TEST(Auto, OptionsThatCannotBeAreRefused) {
  const auto with = [](const AutoOptions& options) {
    return refusal([options](World&) { return automatic(4, options); });
  };
  EXPECT_THAT(with({.profile_steps = 0}), HasSubstr("automatic.profile_steps is 0"));
  EXPECT_THAT(with({.time_budget = -1}), HasSubstr("automatic.time_budget is -1"));
  EXPECT_THAT(with({.time_budget = 1000}), AllOf(HasSubstr("automatic.time_budget is 1000"), HasSubstr("180 s")));
  EXPECT_THAT(with({.memory_limit = 0.5}), AllOf(HasSubstr("automatic.memory_limit is 0.5"), HasSubstr("at least 1")));
  EXPECT_THAT(with({.memory_limit = -1}), HasSubstr("automatic.memory_limit is -1"));
  EXPECT_THAT(
      refusal([](World& world) { return world.is_first() ? automatic(4) : PipelineOptions{.microbatches = 4}; }),
      HasSubstr("choice of schedule"));
  const auto one_behind_the_other = [](World& world) {
    const int first = 2 * world.rank().value;
    return std::vector<Stage>{make_stage(first, layer()), make_stage(first + 1, layer())};
  };
  EXPECT_THAT(refusal([](World&) { return automatic(4); }, one_behind_the_other),
              AllOf(HasSubstr("on ranks 0 0 1 1"), HasSubstr("linear, in a loop or in a V")));
  EXPECT_THAT(
      refusal([](World&) { return automatic(4); }, [](World&) { return std::vector<Stage>{make_stage(0, layer())}; }),
      HasSubstr("stage 0 of rank 1 is on rank 0 too"));
  EXPECT_THAT(refusal([](World&) { return automatic(4); },
                      [](World& world) { return std::vector<Stage>{make_stage(2 * world.rank().value, layer())}; }),
              HasSubstr("numbered from 0 without gaps"));
  run_ranks(quick(1), [](World& world) {
    const Pipeline fixed(world, {stage_for(world)}, {.microbatches = 1, .loss = mean_square});
    EXPECT_THAT(message_of([&] { (void)auto_report(fixed); }), HasSubstr("only with schedule \"auto\""));
  });
}

TEST(Auto, AFailedStepDoesNotCount) {
  run_ranks(quick(2), [](World& world) {
    int calls = 0;
    const auto forward = [&](const StageCall& call) -> Value {
      if (++calls == 6 && world.is_last()) throw std::runtime_error("bad luck");
      return call.tensor(0) * 2.0;
    };
    Pipeline pipeline(world, {Stage(world.rank().value, forward, {})}, automatic(2));
    const Tensor x = at::ones({4, 4}).requires_grad_(true);
    int good = 0;
    int failed = 0;
    while (auto_report(pipeline).phase != Phase::kDecided) {
      try {
        pipeline.step({x}, {.target = at::ones({4, 4})});
        ++good;
      } catch (const Error&) {
        ++failed;
      }
    }
    EXPECT_EQ(failed, 1);
    EXPECT_GE(good, kAutoSteps / 2);
  });
}

TEST(Auto, AFailureToPlanIsAnErrorOnAllRanksAndTheNextStepWorks) {
  Sayings said;
  run_ranks(quick(2), [&](World& world) {
    Autopilot autopilot(world, kQuick, make_schedule("1F1B", {.ranks = 2, .microbatches = 2}), "send_recv", 1);
    EXPECT_EQ(autopilot.next(), Autopilot::kWhole);
    said.add(world.rank(), message_of([&] {
               for (int step = 0; step < kAutoSteps / 2; ++step) autopilot.after_step({}, 1);  // nothing was recorded
             }));
    EXPECT_TRUE(autopilot.is_decided());
    EXPECT_EQ(autopilot.next(), Autopilot::kWhole);
    autopilot.after_step({}, 1);
  });
  EXPECT_THAT(said.of(0), HasSubstr("empty timeline"));
  EXPECT_THAT(said.of(1), AllOf(HasSubstr("rank 0: while planning a schedule"), HasSubstr("empty timeline")));
}

TEST(Auto, StepsThatTakeLongerAreNotCounted) {
  run_ranks(quick(1), [&](World& world) {
    Autopilot autopilot(world, kQuick, make_schedule("1F1B", {.ranks = 1, .microbatches = 2}), "send_recv", 2);
    const auto records_after = [&](int steps) {
      for (int step = 0; step < steps; ++step) autopilot.after_step({}, 1);
      return autopilot.records();
    };
    EXPECT_TRUE(records_after(kAutoSteps / 2 + 1));  // two more than with one warm-up of each schedule
    EXPECT_THAT(message_of([&] { records_after(1); }), HasSubstr("empty timeline"));
  });
}

TEST(Auto, TheUsersOwnRecordingIsLeftAlone) {
  run_ranks(quick(1), [](World& world) {
    Pipeline pipeline(world, {stage_for(world)}, automatic(2));
    const Tensor x = at::ones({4, 4});
    pipeline.record_timeline(true);
    for (int step = 0; step < kAutoSteps + 1; ++step) pipeline.step({x}, {.target = x});
    EXPECT_FALSE(pipeline.timeline().empty());
    pipeline.record_timeline(false);
    pipeline.step({x}, {.target = x});
    EXPECT_TRUE(pipeline.timeline().empty());
  });
}

TEST(Auto, ReplicasDecideAlike) {
  Sayings said;
  run_ranks({.ranks = 2, .replicas = 2, .timeout = kPatience}, [&](World& world) {
    Pipeline pipeline(world, {stage_for(world)}, automatic(4));
    const Tensor x = at::randn({4, 4});
    for (int step = 0; step < kAutoSteps + 1; ++step) pipeline.step({x}, {.target = x});
    EXPECT_EQ(auto_report(pipeline).phase, Phase::kDecided);
    said.add(world.world_rank(), auto_report(pipeline).text());
  });
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(said.of(rank), said.of(0));
}

}  // namespace
}  // namespace stagecraft
