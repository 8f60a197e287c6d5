// A rank that exceeds the timeout of the others: which rank reports it, when, and whether the world still works.

#include <thread>

#include "pipeline_testing.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/runtime/together.h"
#include "support/every_setting.h"
#include "support/slow_motion.h"

namespace stagecraft {
namespace {

using namespace pipeline_testing;
using namespace std::chrono_literals;

const Timeout kTimeout = slowly(600ms);
const Timeout kMuchLonger = slowly(2400ms);

/// The errors of the ranks of one run, and whether the ranks that are not slow ended within a second of the timeout.
class SlowRank {
 public:
  SlowRank(int ranks, int replicas, int slow) : ranks_(ranks), replicas_(replicas), slow_(slow) {}

  void run(const std::function<void(World&)>& program) {
    run_ranks({.ranks = ranks_, .replicas = replicas_, .threads_per_rank = 1, .timeout = kTimeout}, [&](World& world) {
      const int rank = world.world_rank().value;
      sayings.add(RankId(rank), message_of([&] { program(world); }));
      EXPECT_TRUE(rank == slow_ || seconds_now() - slept_.load() < in_seconds(slowly(1600ms)))
          << "rank " << rank << " ended late";
    });
  }
  void sleep() {
    slept_ = seconds_now();
    std::this_thread::sleep_for(kMuchLonger);
  }
  void expect_all_name_it() {
    for (int rank = 0; rank < ranks_ * replicas_; ++rank) {
      EXPECT_THAT(sayings.of(rank), HasSubstr("look at what rank " + std::to_string(slow_) + " does"))
          << "rank " << rank;
    }
  }
  Sayings sayings;

 private:
  int ranks_, replicas_, slow_;
  std::atomic<double> slept_ = 0;
};

TEST(SlowRank, IsNamedByAllAndTheWorldIsOver) {
  for (const int slow : every_setting() ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{2}) {
    SlowRank ranks(4, 1, slow);
    ranks.run([&](World& world) {
      auto module = layer();
      Stage stage = make_stage(world.rank().value, module.ptr(), [&, module](const StageCall& call) mutable -> Value {
        if (world.rank().value == slow && call.microbatch == MicrobatchId(1)) ranks.sleep();
        return module->forward(call.tensor(0));
      });
      Pipeline pipeline(world, {std::move(stage)}, {.schedule = "1F1B", .microbatches = 4, .loss = mean_square});
      const Tensor x = at::randn({4, 4});
      const std::string first = message_of([&] { pipeline.step({x}, {.target = x}); });
      // Ranks are in different steps now: none of them can be trusted.
      const double begin = seconds_now();
      const std::string second = message_of([&] { pipeline.step({x}, {.target = x}); });
      EXPECT_LT(seconds_now() - begin, in_seconds(slowly(600ms)))
          << "it does not begin: the slow rank would sleep again";
      EXPECT_THAT(second, HasSubstr("look at what rank " + std::to_string(slow) + " does"));
      throw std::runtime_error(first);
    });
    ranks.expect_all_name_it();
    const std::string at = "(it is at " + std::to_string(slow) + "F1)";
    EXPECT_THAT(ranks.sayings.of(slow == 0 ? 1 : 0), HasSubstr(at));
  }
}

TEST(SlowRank, BetweenTwoStepsIsNamedByAll) {
  SlowRank ranks(3, 1, 1);
  ranks.run([&](World& world) {
    Pipeline pipeline(world, {stage_for(world)}, {.microbatches = 3, .loss = mean_square});
    const Tensor x = at::randn({3, 4});
    pipeline.step({x}, {.target = x});
    if (world.rank().value == 1) ranks.sleep();
    pipeline.step({x}, {.target = x});
  });
  ranks.expect_all_name_it();
  EXPECT_THAT(ranks.sayings.of(0), HasSubstr("(it is outside of the schedule)"));
}

TEST(SlowRank, AtTheEndOfAStepIsNamedByAll) {
  SlowRank ranks(3, 1, 2);
  ranks.run([&](World& world) {
    together(world, [&] {
      if (world.rank().value == 2) ranks.sleep();
    });
  });
  ranks.expect_all_name_it();
  EXPECT_THAT(ranks.sayings.of(0), HasSubstr("the end of the step"));
}

TEST(SlowRank, WhoseReplicasWaitForItIsNamedByAllAndTheAverageToo) {
  SlowRank ranks(2, 2, 3);
  ranks.run([&](World& world) {
    Pipeline pipeline(world, {stage_for(world)}, {.schedule = "GPipe", .microbatches = 2, .loss = mean_square});
    pipeline.on(ActionKind::kReduceGrad, [&](const ActionContext& context) {
      if (world.world_rank().value == 3) ranks.sleep();
      context.run();
    });
    const Tensor x = at::randn({4, 4});
    pipeline.step({x}, {.target = x});
  });
  ranks.expect_all_name_it();
  EXPECT_THAT(ranks.sayings.of(2), HasSubstr("the gradients of stage 1"));
}

TEST(SlowRank, WhoWaitsForItSaysWhatFor) {
  Sayings sayings;
  run_ranks({.ranks = 2, .timeout = slowly(300ms)}, [&](World& world) {
    auto module = layer();
    Stage stage = make_stage(world.rank().value, module.ptr(), [&, module](const StageCall& call) mutable -> Value {
      if (world.is_first() && call.microbatch == MicrobatchId(1)) {
        std::this_thread::sleep_for(slowly(800ms));
      }
      return module->forward(call.tensor(0));
    });
    Pipeline pipeline(world, {std::move(stage)}, {.schedule = "GPipe", .microbatches = 2, .loss = mean_square});
    const Tensor x = at::randn({4, 4});
    sayings.add(world.rank(), message_of([&] { pipeline.step({x}, {.target = x}); }));
  });
  EXPECT_THAT(sayings.of(1), HasSubstr("waited " + in_ms(slowly(300ms)) +
                                       " for the activation of microbatch 1 from stage 0 to stage 1 from rank 0"));
  EXPECT_THAT(sayings.of(1), HasSubstr("1F1"));
}

}  // namespace
}  // namespace stagecraft
