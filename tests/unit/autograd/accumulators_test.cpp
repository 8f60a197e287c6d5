#include "stagecraft/autograd/accumulators.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

namespace stagecraft {
namespace {

using torch::autograd::impl::grad_accumulator;

TEST(Accumulators, AreUsedByGraphsThatAreMadeFromThenOn) {
  const std::vector<at::Tensor> weights = {torch::ones({2}, torch::requires_grad())};
  const auto before = grad_accumulator(weights[0]);
  const Accumulators own(weights);
  own.use();
  const auto first = grad_accumulator(weights[0]);
  EXPECT_NE(first, before);
  const Accumulators another(weights);
  another.use();
  EXPECT_NE(grad_accumulator(weights[0]), first);
  (weights[0] * 2).sum().backward();
  own.use();
  EXPECT_EQ(grad_accumulator(weights[0]), first);
  (weights[0] * 3).sum().backward();
  EXPECT_EQ(weights[0].grad()[0].item<float>(), 5);
}

TEST(Accumulators, LeaveNodesAloneThatHaveHooks) {
  struct Count : torch::autograd::FunctionPostHook {
    explicit Count(int& count) : count_(count) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list& /*inputs*/) override {
      ++count_;
      return outputs;
    }
    int& count_;
  };
  const std::vector<at::Tensor> weights = {torch::ones({2}, torch::requires_grad())};
  int count = 0;
  const auto hooked = grad_accumulator(weights[0]);  // whoever adds hooks keeps it
  hooked->add_post_hook(std::make_unique<Count>(count));
  const Accumulators own(weights);
  own.use();
  (weights[0] * 2).sum().backward();
  EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace stagecraft
