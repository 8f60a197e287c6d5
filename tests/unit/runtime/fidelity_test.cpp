// Costs of recorded runs predict other schedules. Actions sleep for known times, so that the machine hardly matters;
// bench/fidelity_bench.cpp does the same with real compute.

#include <chrono>
#include <thread>

#include "pipeline_testing.h"
#include "stagecraft/core/clock.h"
#include "stagecraft/core/median.h"

namespace stagecraft {
namespace {

using namespace pipeline_testing;

constexpr int kRanks = 3;
constexpr int kMicrobatches = 4;
constexpr int kSteps = 4;
constexpr double kTolerance = 0.2;

struct Outcome {
  Recording recording;
  double seconds = 0;  // of a step, the median
  Schedule schedule;
};

/// Stage s takes (s + 2) times as long as a fixed time, its I three quarters of that.
Outcome run_schedule(const std::string& name) {
  Outcome result;
  result.recording.name = name;
  run_ranks(quick(kRanks), [&](World& world) {
    Pipeline pipeline(world, {stage_for(world)},
                      {.schedule = name, .microbatches = kMicrobatches, .loss = mean_square});
    for (const ActionKind kind :
         {ActionKind::kForward, ActionKind::kBackward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight}) {
      pipeline.on(kind, [](const ActionContext& context) {
        context.run();
        const int units = context.action().kind() == ActionKind::kBackward        ? 7
                          : context.action().kind() == ActionKind::kBackwardInput ? 3
                                                                                  : 4;
        std::this_thread::sleep_for(units * (context.stage().index().value + 2) * std::chrono::microseconds(500));
      });
    }
    pipeline.record_timeline(true);
    const Tensor x = at::ones({kMicrobatches, 4});
    std::vector<double> seconds;
    for (int step = 0; step < kSteps; ++step) {
      const double begin = seconds_now();
      pipeline.step({x}, {.target = x});
      if (step > 0) seconds.push_back(seconds_now() - begin);
      StepTimelines timelines = pipeline.collect_timelines(RankId(0));
      if (world.is_first()) result.recording.steps.push_back(std::move(timelines));
    }
    if (!world.is_first()) return;
    result.seconds = median(seconds);
    result.schedule = pipeline.schedule();
  });
  return result;
}

TEST(Fidelity, CostsOfTwoRunsPredictTheStepTimeOfOthers) {
  const std::vector<Recording> recordings = {run_schedule("1F1B").recording, run_schedule("ZB-H1").recording};
  Costs costs = profile(recordings).costs;
  for (StageCosts& stage : costs.stages) stage.optimizer = 0;  // only steps are measured
  std::vector<std::pair<double, double>> times;
  for (const char* name : {"1F1B", "GPipe", "ZB-H2", "Eager1F1B"}) {
    const Outcome measured = run_schedule(name);
    times.emplace_back(simulate(measured.schedule, costs).makespan, measured.seconds);
    EXPECT_NEAR(times.back().first / times.back().second, 1, kTolerance) << name;
  }
  for (const auto& [predicted, seconds] : times) {
    for (const auto& [other_predicted, other_seconds] : times) {
      if (seconds < other_seconds * (1 - kTolerance)) {
        EXPECT_LT(predicted, other_predicted);
      }
    }
  }
}

}  // namespace
}  // namespace stagecraft
