// Fused steps of Adam and AdamW: the weights and the state of LibTorch's own step.

#include "stagecraft/training/fast_step.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fused_adam.h"
#include "stagecraft/stagecraft.h"

namespace stagecraft {
namespace {

std::vector<at::Tensor> some_weights() {
  std::vector<at::Tensor> all;
  for (const auto& sizes : {std::vector<std::int64_t>{7, 5}, {3}, {0}, {2, 2, 2}}) {
    const std::int64_t count = c10::multiply_integers(sizes);
    all.push_back((at::arange(count, at::kDouble) + 1).sin().view(sizes).set_requires_grad(true));
  }
  return all;
}

/// One of them has no gradient in every third step.
void set_gradients(const std::vector<at::Tensor>& weights, int step) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i].mutable_grad() = i == 1 && step % 3 == 0 ? at::Tensor() : (weights[i].detach() * 3 + step).cos();
  }
}

template <typename Optimizer, typename Options>
void expect_equal_to_step(const Options& options, const Options& of_second_group) {
  const auto make = [&](const std::vector<at::Tensor>& weights) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{weights[0], weights[1]}, std::make_unique<Options>(options));
    groups.emplace_back(std::vector<at::Tensor>{weights[2], weights[3]}, std::make_unique<Options>(of_second_group));
    return std::make_unique<Optimizer>(groups, options);
  };
  const std::vector<at::Tensor> fused = some_weights();
  const std::vector<at::Tensor> plain = some_weights();
  const auto fused_optimizer = make(fused);
  const auto plain_optimizer = make(plain);
  for (int step = 0; step < 7; ++step) {
    set_gradients(fused, step);
    set_gradients(plain, step);
    const AdamKernels kernels = step % 3 == 0 ? AdamKernels::kLibTorch : AdamKernels::kOnePass;
    ASSERT_TRUE(step % 3 != 2 ? fused_adam_step(*fused_optimizer, kernels) : (fast_step(*fused_optimizer), true));
    plain_optimizer->step();
    for (std::size_t i = 0; i < fused.size(); ++i) {
      if (fused[i].numel() == 0) continue;
      EXPECT_LT((fused[i] - plain[i]).abs().max().item<double>(), 1e-13) << "weight " << i << ", step " << step;
    }
  }
}

TEST(FusedAdam, EqualsStep) {
  using torch::optim::AdamOptions;
  using torch::optim::AdamWOptions;
  expect_equal_to_step<torch::optim::AdamW>(AdamWOptions(0.1).weight_decay(0.3), AdamWOptions(0.02).weight_decay(0.0));
  expect_equal_to_step<torch::optim::Adam>(AdamOptions(0.1).betas({0.8, 0.9}), AdamOptions(0.02).weight_decay(0.1));
}

// LibTorch's own step goes on where a gradient lies otherwise in memory, and where the type is another.
TEST(FusedAdam, LeavesOtherStridesAndTypesToTheirOwnStep) {
  at::Tensor weight = at::ones({4, 3}, at::kDouble).set_requires_grad(true);
  weight.mutable_grad() = at::arange(12, at::kDouble).view({3, 4}).t();
  torch::optim::AdamW turned({weight}, 0.1);
  EXPECT_FALSE(fused_adam_step(turned, AdamKernels::kOnePass));
  EXPECT_TRUE(turned.state().empty());
  at::Tensor small = at::ones({4, 3}, at::kBFloat16).set_requires_grad(true);
  small.mutable_grad() = at::ones_like(small);
  torch::optim::AdamW low({small}, 0.1);
  EXPECT_FALSE(fused_adam_step(low, AdamKernels::kOnePass));
  fast_step(low);
  EXPECT_FALSE(at::equal(small, at::ones_like(small)));
}

/// Losses of six steps of two stages.
std::vector<double> losses_of(int replicas, Shard shard, bool is_mixed, bool is_fast) {
  std::vector<double> losses;
  run_ranks({.ranks = 2, .replicas = replicas, .threads_per_rank = 1}, [&](World& world) {
    const at::Tensor weight =
        ((at::arange(36) + 7 * world.rank().value).sin().view({6, 6}) * 0.5).set_requires_grad(true);
    std::vector<Stage> stages;
    stages.emplace_back(
        world.rank().value,
        [weight](const StageCall& call) -> Value { return at::tanh(at::matmul(call.tensor(0), weight)); },
        NamedTensors{{"weight" + std::to_string(world.rank().value), weight}});
    PipelineOptions options = {
        .schedule = "1F1B",
        .microbatches = 2,
        .loss = [](const at::Tensor& output, const at::Tensor& target) { return (output - target).square().mean(); },
        .shard = shard};
    if (is_mixed) options.precision.compute = at::kBFloat16;
    Pipeline pipeline(world, std::move(stages), options);
    torch::optim::AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(0.05));
    pipeline.attach(optimizer);
    const at::Tensor x = at::arange(24).cos().view({4, 6});
    for (int step = 0; step < 6; ++step) {
      const StepResult result = pipeline.step({x}, {.target = x});
      is_fast ? fast_step(optimizer) : static_cast<void>(optimizer.step());
      optimizer.zero_grad();
      if (world.is_last() && world.replica() == 0) losses.push_back(result.loss());
    }
  });
  return losses;
}

// Copies of the weights in another type, and gathered ones, must follow.
TEST(FusedAdam, TrainsWhatStepTrains) {
  for (const bool is_mixed : {false, true}) {
    for (const auto& [replicas, shard] : {std::pair(1, Shard::kNone), std::pair(2, Shard::kNone),
                                          std::pair(2, Shard::kOptimizer), std::pair(2, Shard::kParameters)}) {
      const std::vector<double> fast = losses_of(replicas, shard, is_mixed, true);
      const std::vector<double> plain = losses_of(replicas, shard, is_mixed, false);
      ASSERT_EQ(fast.size(), 6U);
      EXPECT_LT(plain.back(), plain.front());
      for (std::size_t i = 0; i < fast.size(); ++i) {
        EXPECT_NEAR(fast[i], plain[i], is_mixed ? 2e-3 : 1e-6)
            << shard_name(shard) << ", mixed " << is_mixed << ", step " << i;
      }
    }
  }
}

TEST(FusedAdam, AGraphOfTheOldWeightsIsRefused) {
  at::Tensor weight = at::ones({3}).set_requires_grad(true);
  const at::Tensor loss = (weight * weight).sum();
  weight.mutable_grad() = at::ones({3});
  torch::optim::AdamW optimizer({weight}, 0.1);
  fast_step(optimizer);
  EXPECT_THROW(loss.backward(), c10::Error);
}

// Shards end anywhere, and threads take any part.
TEST(FusedAdam, AShardHasTheBitsOfTheWhole) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const std::int64_t count = 300001;
    const at::Tensor start = (at::arange(count, at::kDouble) * 0.37).sin().to(type);
    const auto train = [&](std::int64_t from, std::int64_t to) {
      const at::Tensor weight = start.slice(0, from, to).clone().set_requires_grad(true);
      torch::optim::AdamW optimizer({weight}, torch::optim::AdamWOptions(0.1).weight_decay(0.3));
      for (int step = 0; step < 3; ++step) {
        weight.mutable_grad() = ((start * 3 + step).cos() * 1e-3).slice(0, from, to).clone();
        fast_step(optimizer);
      }
      return weight.detach();
    };
    const at::Tensor whole = train(0, count);
    for (const std::int64_t cut : {1, 3, 7, 150001, 300000}) {
      EXPECT_TRUE(at::equal(at::cat({train(0, cut), train(cut, count)}), whole)) << type << " cut at " << cut;
    }
  }
}

TEST(FusedAdam, LeavesOthersToTheirOwnStep) {
  std::vector<at::Tensor> weights = some_weights();
  set_gradients(weights, 1);
  torch::optim::SGD sgd(weights, 0.1);
  for (const AdamKernels kernels : {AdamKernels::kLibTorch, AdamKernels::kOnePass}) {
    EXPECT_FALSE(fused_adam_step(sgd, kernels));
  }
  torch::optim::AdamW maximum(weights, torch::optim::AdamWOptions(0.1).amsgrad(true));
  EXPECT_FALSE(fused_adam_step(maximum, AdamKernels::kOnePass));
  EXPECT_TRUE(maximum.state().empty());
  const at::Tensor before = weights[0].detach().clone();
  fast_step(sgd);
  EXPECT_FALSE(at::equal(before, weights[0]));
}

}  // namespace
}  // namespace stagecraft
