// Fused steps of Adam and AdamW: the weights and the state of LibTorch's own step.

#include "stagecraft/training/fast_step.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fused_adam.h"

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
    ASSERT_TRUE(step % 2 == 0 ? fused_adam_step(*fused_optimizer) : (fast_step(*fused_optimizer), true));
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

TEST(FusedAdam, LeavesOthersToTheirOwnStep) {
  std::vector<at::Tensor> weights = some_weights();
  set_gradients(weights, 1);
  torch::optim::SGD sgd(weights, 0.1);
  EXPECT_FALSE(fused_adam_step(sgd));
  torch::optim::AdamW maximum(weights, torch::optim::AdamWOptions(0.1).amsgrad(true));
  EXPECT_FALSE(fused_adam_step(maximum));
  EXPECT_TRUE(maximum.state().empty());
  const at::Tensor before = weights[0].detach().clone();
  fast_step(sgd);
  EXPECT_FALSE(at::equal(before, weights[0]));
}

}  // namespace
}  // namespace stagecraft
