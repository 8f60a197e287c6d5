// What run_ranks sets up on a rank's thread.

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <array>

#include "hidden_function.h"
#include "pipeline_testing.h"
#include "stagecraft/runtime/launch.h"
#include "stagecraft/runtime/rank_scope.h"
#include "stagecraft/transport/local.h"

namespace stagecraft {
namespace {

using namespace pipeline_testing;

int occurrences(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string errors_of(const std::function<void(World&)>& program) {
  testing::internal::CaptureStderr();
  run_ranks({.ranks = 2}, program);
  return testing::internal::GetCapturedStderr();
}

constexpr const char* kStack =
    "\nException raised from multiply at product.cpp:7 (most recent call first):\nframe #0: multiply\nframe #1: "
    "start\n";

TEST(Launch, AWarningIsOneLineAndGivenOnce) {
  const auto program = [](World& world) {
    for (int i = 0; i < 3; ++i) {
      TORCH_WARN("no fast product,\nwith another library: bfloat16 is slow here", kStack);
      if (world.rank().value == 0) TORCH_WARN("a tensor of size ", i, " was resized");
    }
  };
  const std::string first = errors_of(program);
  EXPECT_EQ(occurrences(first, "Warning: no fast product, with another library: bfloat16 is slow here"), 1) << first;
  EXPECT_EQ(occurrences(first, "frame #"), 0) << first;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(occurrences(first, "a tensor of size " + std::to_string(i) + " was resized"), 1) << first;
  }
  const std::string again = errors_of(program);
  EXPECT_EQ(occurrences(again, "Warning"), 0) << again;
}

TEST(Launch, AWarningInABackwardIsOneLineAndGivenOnce) {
  const std::string errors = errors_of([](World&) {
    const Tensor x = at::ones({2}).requires_grad_();
    const Tensor y = x * 2;
    y.register_hook([](const Tensor&) { TORCH_WARN("slow gradient", kStack); });
    for (int i = 0; i < 2; ++i) y.sum().backward({}, /*retain_graph=*/true);
  });
  EXPECT_EQ(occurrences(errors, "Warning: slow gradient"), 1) << errors;
  EXPECT_EQ(occurrences(errors, "frame #"), 0) << errors;
}

TEST(Launch, LeavesTheCallersWarningsAlone) {
  struct Counting : c10::WarningHandler {
    void process(const c10::Warning&) override { ++warnings; }
    int warnings = 0;
  } counting;
  const c10::WarningUtils::WarningHandlerGuard own(&counting);
  EXPECT_EQ(occurrences(errors_of([](World&) { TORCH_WARN("of a rank"); }), "of a rank"), 1);
  TORCH_WARN("of the caller");
  TORCH_WARN("of the caller");
  EXPECT_EQ(counting.warnings, 2);
}

TEST(Launch, RanksAsThreadsComputeWithOneDnn) {
  // A test in bfloat16 may have switched it off, on a processor without.
  at::globalContext().setUserEnabledMkldnn(true);
  EXPECT_EQ(occurrences(errors_of([](World&) {}), "oneDNN"), 0);
  EXPECT_TRUE(at::globalContext().userEnabledMkldnn()) << "it was made safe too late";
}

#if defined(__aarch64__) && defined(__linux__)
/// How many primitives oneDNN keeps after a run; -1 if it does not say.
int capacity_after(int ranks) {
  void* const function = hidden_function("libtorch_cpu.so", "dnnl_get_primitive_cache_capacity");
  run_ranks({.ranks = ranks}, [](World&) {});
  int capacity = -1;
  if (function != nullptr) reinterpret_cast<int (*)(int*)>(function)(&capacity);
  return capacity;
}

TEST(Launch, RanksAsThreadsShareNoPrimitivesOfOneDnn) { EXPECT_EQ(capacity_after(2), 0); }

TEST(LaunchDeathTest, OneRankKeepsThePrimitivesOfOneDnn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a new process, in which nobody has run two
  EXPECT_EXIT(std::_Exit(capacity_after(1) > 0 ? 0 : 1), testing::ExitedWithCode(0), "");
}
#endif

TEST(HiddenFunction, IsNullIfThereIsNone) {
  EXPECT_EQ(hidden_function("libtorch_cpu.so", "no_function_of_this_name"), nullptr);
  EXPECT_EQ(hidden_function("libof_no_such_name.so", "main"), nullptr);
  EXPECT_EQ(hidden_function("libc.so.6", ""), nullptr);
}

// LibTorch gives up oneDNN at the first such layer on a processor without bfloat16: other kernels, and other bits.
TEST(Launch, APipelineInBfloat16DoesNotChangeKernelsInTheMiddle) {
  at::globalContext().setUserEnabledMkldnn(true);
  run_ranks({.ranks = 1}, [](World& world) {
    torch::nn::Linear layer(64, 64);
    layer->to(at::kBFloat16);
    std::vector<Stage> stages;
    stages.push_back(make_stage(0, layer));
    Pipeline pipeline(world, std::move(stages),
                      {.schedule = "GPipe", .microbatches = 1, .loss = [](const at::Tensor& output, const at::Tensor&) {
                         return output.sum();
                       }});
    const bool before = at::globalContext().userEnabledMkldnn();
    const at::Tensor x = at::ones({64, 64}, at::kBFloat16);
    pipeline.step({x}, {.target = x});
    EXPECT_EQ(at::globalContext().userEnabledMkldnn(), before);
  });
}

TEST(Launch, ARankScopeEndsWithTheThreadsThatItFound) {
  const int before = at::get_num_threads();
  {
    const RankScope scope(at::kCPU, before + 1);
    EXPECT_EQ(at::get_num_threads(), before + 1);
  }
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(Launch, AWorldOfYourOwnIsFoundByItsName) {
  int ranks = 0;
  register_world({"alone", [] { return false; },
                  [](const LaunchOptions& options, const std::function<void(World&)>& program) {
                    LocalFabric fabric(1);
                    const RankScope scope(at::kCPU, 1);
                    World world(fabric.connect(RankId(0)), scope.device(), options.timeout);
                    program(world);
                    return 7;
                  }});
  const auto program = [&](World& world) { ranks = world.size(); };
  std::string name = "program";
  std::string flag = "--stagecraft-world=alone";
  std::array<char*, 2> words = {name.data(), flag.data()};
  EXPECT_EQ(launch(2, words.data(), {.ranks = 3}, program), 7);
  EXPECT_EQ(ranks, 1);
  EXPECT_THAT(message_of([] { register_world({"alone", {}, {}}); }), HasSubstr("a world called 'alone' already"));
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch(1, words.data(), {.world = "nowhere"}, program), 2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("there is no world called 'nowhere': there are threads, mpi, processes, alone"));
}

}  // namespace
}  // namespace stagecraft
