// PipelineOptions::graph where there is no GPU; tests/gpu has the others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stagecraft/stagecraft.h"
#include "support/message_of.h"

namespace stagecraft {
namespace {

void one_step(GraphChoice graph, const std::function<void(const Pipeline&)>& check) {
  run_ranks({.ranks = 1}, [&](World& world) {
    torch::nn::Sequential layers(torch::nn::Linear(4, 4));
    Pipeline pipeline(
        world, layers,
        {.microbatches = 2,
         .loss = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); },
         .graph = graph});
    pipeline.step({at::ones({4, 4})}, {.target = at::zeros({4, 4})});
    check(pipeline);
  });
}

TEST(Graph, IsRefusedOnACpu) {
  const std::string message = message_of([] { one_step(true, [](const Pipeline&) {}); });
  EXPECT_THAT(message, testing::HasSubstr("graph is true, but rank 0 computes on cpu"));
  EXPECT_THAT(message, testing::HasSubstr(".graph = \"auto\""));
}

TEST(Graph, AutoIsEagerOnACpu) {
  one_step("auto", [](const Pipeline& pipeline) {
    EXPECT_EQ(pipeline.captured().replayed, 0U);
    EXPECT_EQ(pipeline.captured().graphs, 0);
  });
}

TEST(Graph, IsTrueFalseOrAuto) {
  EXPECT_THAT(message_of([] { (void)GraphChoice("always"); }), testing::HasSubstr("\"auto\""));
  EXPECT_FALSE(GraphChoice().is_on());
  EXPECT_TRUE(GraphChoice("auto").is_auto());
}

}  // namespace
}  // namespace stagecraft
