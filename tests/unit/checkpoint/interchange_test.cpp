// Python's safetensors and torch load our checkpoints, and we load theirs.

#include <cstdio>
#include <cstdlib>

#include "checkpoint_testing.h"

namespace stagecraft {
namespace {

using namespace checkpoint_testing;

/// The numbers that a command prints; `status` is its exit status.
std::vector<double> numbers_printed(const std::string& command, int& status) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::vector<double> all;
  for (double value = 0; std::fscanf(pipe, "%lf", &value) == 1;) all.push_back(value);
  status = ::pclose(pipe);
  return all;
}

TEST(CheckpointInterchangeOnThreads, PythonReadsAndWritesTheSameFiles) {
  const char* python = std::getenv("STAGECRAFT_TEST_PYTHON");
  const char* script = std::getenv("STAGECRAFT_TEST_INTERCHANGE");
  ASSERT_TRUE(python != nullptr && script != nullptr) << "ctest names both: run it by ctest";
  const ScratchFolder folder;
  const Layout layout{.schedule = "Interleaved1F1B", .ranks = 2, .stages_per_rank = 2};
  Models models(layout, 4);
  const at::Tensor x = at::linspace(-1, 1, 24).view({4, 6});
  run_on(layout, [&](World& world) {
    Pipeline pipeline = models.pipeline(world);
    torch::optim::AdamW optimizer(pipeline.parameters(), 0.01);
    train(world, pipeline, optimizer, 0, 2);
    save_checkpoint(world, pipeline, folder.path("weights"));
    save_checkpoint(world, pipeline, folder.path("full"),
                    {.optimizer = &optimizer, .step = 2, .metadata = {{"by", "ä \"me\""}}});
    const StepResult result = pipeline.eval({x});
    NamedTensors before = pipeline.named_parameters();
    for (auto& [name, tensor] : before) tensor = tensor.detach().clone();
    if (pipeline.has_last_stage()) {
      int status = 0;
      const std::vector<double> printed =
          numbers_printed(std::string(python) + " " + script + " " + folder.path("weights") + " " +
                              folder.path("full") + " " + folder.path("by_python"),
                          status);
      EXPECT_EQ(status, 0);
      const at::Tensor output = result.output.tensor().flatten();
      ASSERT_EQ(static_cast<std::int64_t>(printed.size()), output.numel());
      for (std::size_t i = 0; i < printed.size(); ++i) {
        EXPECT_NEAR(printed[i], output[static_cast<std::int64_t>(i)].item<double>(), 1e-6);
      }
    }
    world.everyone().barrier();
    EXPECT_EQ(load_checkpoint(world, pipeline, folder.path("by_python_copy"), {.optimizer = &optimizer}), 2);
    EXPECT_THAT(message_of([&] { load_checkpoint(world, pipeline, folder.path("by_python_edited")); }),
                testing::HasSubstr("tensor '7.bias' is damaged"));
    EXPECT_EQ(load_checkpoint(world, pipeline, folder.path("by_python")), 0);
    const NamedTensors after = pipeline.named_parameters();
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_TRUE(after[i].second.equal(before[i].second * 2)) << after[i].first;
    }
  });
}

}  // namespace
}  // namespace stagecraft
