// Random numbers of ranks that share the default generator of a GPU. Needs a GPU: `make test-gpu`.

#include <atomic>

#include "training.h"

namespace stagecraft::equivalence {
namespace {

class RandomRanks : public OnGpu {};

/// The losses of some steps of two ranks. Rank 1 draws `draws` times before every step, while rank 0 is already in it.
std::vector<at::Tensor> losses_of(int draws) {
  std::vector<at::Tensor> losses;
  run_ranks(
      {.ranks = 2, .device = [](RankId) { return kGpu; }, .timeout = std::chrono::seconds(20)}, [&](World& world) {
        constexpr int kInFlight = 64;
        torch::manual_seed(1);
        auto layer = std::make_shared<torch::nn::LinearImpl>(kWidth, kWidth);
        {
          const at::NoGradGuard no_graph;
          layer->weight.fill_(0.3);
          layer->bias.fill_(0.1);
        }
        layer->to(kGpu);
        std::vector<Stage> stages;
        stages.push_back(make_stage(world.rank().value, layer, [layer](const StageCall& call) -> Value {
          at::Tensor x = layer->forward(call.tensor(0));
          for (int i = 0; i < 4; ++i) x = at::dropout(x, 0.5, true);
          return x;
        }));
        Pipeline pipeline(
            world, std::move(stages),
            {.schedule = "GPipe",
             .microbatches = kInFlight,
             .loss = [](const at::Tensor& output, const at::Tensor& target) { return (output - target).pow(2).mean(); },
             .seed = 3});
        const at::Tensor x = at::ones({kInFlight * 4, kWidth}, at::TensorOptions(kGpu));
        for (int step = 0; step < 10; ++step) {
          if (world.rank().value == 1) {
            for (int i = 0; i < draws; ++i) at::dropout(x, 0.5, true);
          }
          const StepResult result = pipeline.step({x}, {.target = x});
          if (result.has_loss()) losses.push_back(at::stack(result.losses).cpu());
        }
      });
  return losses;
}

TEST_F(RandomRanks, DoNotDependOnWhatOthersDrawMeanwhile) {
  const std::vector<at::Tensor> alone = losses_of(0);
  const std::vector<at::Tensor> disturbed = losses_of(3000);
  ASSERT_EQ(alone.size(), disturbed.size());
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(at::equal(alone[i], disturbed[i])) << "step " << i;
}

}  // namespace
}  // namespace stagecraft::equivalence
