// Costs of recorded runs predict other schedules: exactly, where actions take exactly the same time in all of them.
// bench/fidelity_bench.cpp does the same with real compute.

#include "pipeline_testing.h"
#include "support/simulated_time.h"

namespace stagecraft {
namespace {

using namespace pipeline_testing;

constexpr int kRanks = 3;
constexpr int kMicrobatches = 4;
constexpr int kSteps = 3;

struct Outcome {
  Recording recording;
  double seconds = 0;  // of the last step
  Schedule schedule;
};

/// Stage s takes (s + 2) times as long as a fixed time, its I three quarters of that.
Outcome run_schedule(const std::string& name) {
  Outcome result;
  result.recording.name = name;
  run_in_simulated_time(kRanks, kPatience, [&](World& world, SimulatedClocks& clocks) {
    Pipeline pipeline(world, {stage_for(world)},
                      {.schedule = name, .microbatches = kMicrobatches, .loss = mean_square});
    for (const ActionKind kind :
         {ActionKind::kForward, ActionKind::kBackward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight}) {
      pipeline.on(kind, [&](const ActionContext& context) {
        context.run();
        const int units = context.action().kind() == ActionKind::kBackward        ? 7
                          : context.action().kind() == ActionKind::kBackwardInput ? 3
                                                                                  : 4;
        clocks.advance(world.rank(), units * (context.stage().index().value + 2) * 0.001);
      });
    }
    pipeline.record_timeline(true);
    const Tensor x = at::ones({kMicrobatches, 4});
    for (int step = 0; step < kSteps; ++step) {
      const double begin = clocks.now(world.rank());
      pipeline.step({x}, {.target = x});
      if (world.is_first()) result.seconds = clocks.now(world.rank()) - begin;
      StepTimelines timelines = pipeline.collect_timelines(RankId(0));
      if (world.is_first()) result.recording.steps.push_back(std::move(timelines));
    }
    if (world.is_first()) result.schedule = pipeline.schedule();
  });
  return result;
}

TEST(Fidelity, CostsOfTwoRunsPredictTheStepTimeOfOthers) {
  const std::vector<Recording> recordings = {run_schedule("1F1B").recording, run_schedule("ZB-H1").recording};
  Costs costs = profile(recordings).costs;
  for (StageCosts& stage : costs.stages) stage.optimizer = 0;  // only steps are measured
  for (const char* name : {"1F1B", "GPipe", "ZB-H2", "Eager1F1B"}) {
    const Outcome measured = run_schedule(name);
    EXPECT_NEAR(simulate(measured.schedule, costs).makespan, measured.seconds, 1e-9) << name;
  }
}

}  // namespace
}  // namespace stagecraft
