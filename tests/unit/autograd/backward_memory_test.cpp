// What a split backward holds between its input part and its weight part.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stagecraft/autograd/backward.h"

namespace stagecraft {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor leaf(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble).requires_grad_(true); }

TEST(BackwardMemory, InputPartReleasesWhatTheWeightPartDoesNotNeed) {
  const Tensor w = leaf({4, 4});
  const Tensor x = leaf({3, 4});
  c10::weak_intrusive_ptr<at::TensorImpl> activation(at::empty({0}).getIntrusivePtr());
  Backward backward;
  {
    const Tensor hidden = at::sigmoid(at::matmul(x, w));  // kept by the sigmoid alone
    activation = c10::weak_intrusive_ptr<at::TensorImpl>(hidden.getIntrusivePtr());
    backward = Backward(Tensors{hidden * 2}, Tensors{x});
  }
  BackwardPlanner planner;
  backward.input_part({at::ones({3, 4}, at::kDouble)}, planner);
  EXPECT_TRUE(activation.expired());
  backward.weight_part();
  EXPECT_TRUE(w.grad().defined());
}

TEST(BackwardMemory, InputPartReleasesActivationsWhileItRuns) {
  const Tensor w = leaf({4, 4});
  const Tensor x = leaf({3, 4});
  c10::weak_intrusive_ptr<at::TensorImpl> late(at::empty({0}).getIntrusivePtr());
  bool was_released = false;
  Backward backward;
  {
    const Tensor first = at::matmul(x, w);
    first.register_hook([&](const Tensor&) { was_released = late.expired(); });  // when only this product is left
    const Tensor hidden = at::sigmoid(first);                                    // kept by the sigmoid alone
    late = c10::weak_intrusive_ptr<at::TensorImpl>(hidden.getIntrusivePtr());
    backward = Backward(Tensors{hidden * 2}, Tensors{x});
  }
  BackwardPlanner planner;
  backward.input_part({at::ones({3, 4}, at::kDouble)}, planner);
  EXPECT_TRUE(was_released);
  backward.weight_part();
  EXPECT_TRUE(w.grad().defined());
}

TEST(BackwardMemory, SmallWeightsHoldNothingUntilTheWeightPart) {
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({4}));
  norm->to(at::kDouble);
  const Tensor x = leaf({3, 4}), bias = leaf({4});
  c10::weak_intrusive_ptr<at::TensorImpl> normalised(at::empty({0}).getIntrusivePtr());
  c10::weak_intrusive_ptr<at::TensorImpl> arriving(at::empty({0}).getIntrusivePtr());
  Backward backward;
  {
    const Tensor before = x * 3;
    normalised = c10::weak_intrusive_ptr<at::TensorImpl>(before.getIntrusivePtr());
    backward = Backward(Tensors{norm(before) + bias}, Tensors{x});
  }
  BackwardPlanner planner;
  {
    const Tensor gradient = at::randn({3, 4}, at::kDouble);
    arriving = c10::weak_intrusive_ptr<at::TensorImpl>(gradient.getIntrusivePtr());
    backward.input_part({gradient}, planner);
  }
  EXPECT_TRUE(normalised.expired());
  EXPECT_TRUE(arriving.expired());
  EXPECT_FALSE(bias.grad().defined());
  EXPECT_FALSE(norm->weight.grad().defined());
  backward.weight_part();
  EXPECT_TRUE(bias.grad().defined());
  EXPECT_TRUE(norm->weight.grad().defined());
}

}  // namespace
}  // namespace stagecraft
