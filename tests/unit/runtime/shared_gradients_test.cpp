// Gradients that autograd leaves in the same memory: one of them goes to another stage, the other is added to.

#include <chrono>
#include <thread>

#include "pipeline_testing.h"
#include "support/schedule_names.h"

namespace stagecraft::shared_gradients_testing {
namespace {

using namespace pipeline_testing;

constexpr std::int64_t kWidth = 4;
constexpr int kMicrobatches = 4;

/// The gradients of an input and of `added` are views of the same tensor, or the first is what the second is a view of;
/// that of `scale` is a view of the loss's.
struct Block : torch::nn::Module {
  explicit Block(bool is_direct)
      : direct(is_direct),
        added(register_parameter("added", at::zeros({kWidth}))),
        scale(register_parameter("scale", at::zeros({1}))),
        linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}

  ValueList forward(const Tensor& x) {
    const Tensor sum = direct ? x + added.view({1, kWidth}) : (x.unsqueeze(0) + added.view({1, 1, kWidth})).squeeze(0);
    Tensor y = at::tanh(linear(sum));
    // Whoever waits for this gradient has it by now, and goes on.
    if (y.requires_grad())
      y.register_hook([](const Tensor&) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
    return {y, scale.squeeze()};
  }

  bool direct;
  Tensor added, scale;
  torch::nn::Linear linear;
};

Tensor loss_of(const Value& output, const Value& target, const ValueDict&) {
  const ValueList& list = output.list();
  return (list[0].tensor() - target.tensor()).pow(2).mean() + list[1].tensor();
}

std::vector<std::shared_ptr<Block>> blocks_of(int stages, bool direct) {
  torch::manual_seed(5);
  std::vector<std::shared_ptr<Block>> blocks;
  for (int s = 0; s < stages; ++s) blocks.push_back(std::make_shared<Block>(direct));
  return blocks;
}

std::vector<Tensor> gradients_of(const Tensor& x, const std::vector<std::shared_ptr<Block>>& blocks) {
  std::vector<Tensor> all{x.grad()};
  for (const auto& block : blocks) {
    for (const Tensor& parameter : block->parameters()) all.push_back(parameter.grad());
  }
  return all;
}

constexpr int kSteps = 2;

/// Two steps, of which the second adds to the gradients of the first.
std::vector<Tensor> on_one_device(int stages, bool direct, const Tensor& x, const Tensor& y) {
  const auto blocks = blocks_of(stages, direct);
  for (int m = 0; m < kSteps * kMicrobatches; ++m) {
    Value values(ValueList{x.narrow(0, m % kMicrobatches, 1)});
    for (const auto& block : blocks) values = block->forward(values.list()[0].tensor());
    (loss_of(values, y.narrow(0, m % kMicrobatches, 1), {}) / kMicrobatches).backward();
  }
  return gradients_of(x, blocks);
}

class SharedGradients : public testing::TestWithParam<std::tuple<std::string, int, bool>> {};

TEST_P(SharedGradients, AreThoseOfOneDevice) {
  const std::string& schedule = std::get<0>(GetParam());
  const int ranks = std::get<1>(GetParam());
  const bool direct = std::get<2>(GetParam());
  const Tensor x = numbers({kMicrobatches, kWidth}, 1).to(at::kFloat).requires_grad_();
  const Tensor y = numbers({kMicrobatches, kWidth}, 2).to(at::kFloat);
  std::vector<std::shared_ptr<Block>> blocks;
  std::mutex mutex;
  run_ranks(quick(ranks), [&](World& world) {
    const std::vector<StageId> here = stages_here(world, schedule);
    {
      const std::lock_guard lock(mutex);
      if (blocks.empty()) blocks = blocks_of(static_cast<int>(here.size()) * ranks, direct);
    }
    std::vector<Stage> stages;
    for (const StageId stage : here) {
      const auto& block = blocks[stage.index()];
      const bool is_last = stage.index() + 1 == blocks.size();
      stages.push_back(make_stage(stage.value, block, [block, is_last](const StageCall& call) -> Value {
        ValueList out = block->forward(call.tensor(0));
        if (!is_last) return out[0];
        return out;
      }));
    }
    Pipeline pipeline(world, std::move(stages), {.schedule = schedule, .microbatches = kMicrobatches, .loss = loss_of});
    for (int step = 0; step < kSteps; ++step) pipeline.step({x}, {.target = y});
  });
  const std::vector<Tensor> got = gradients_of(x, blocks);
  const Tensor same = x.detach().clone().requires_grad_();
  const std::vector<Tensor> expected = on_one_device(static_cast<int>(blocks.size()), direct, same, y);
  for (std::size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(got[i].defined(), expected[i].defined());
    if (!expected[i].defined()) continue;
    EXPECT_LT((got[i] - expected[i]).abs().max().item<double>(), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, SharedGradients,
                         testing::Combine(testing::ValuesIn(training_schedules()), testing::Values(1, 2),
                                          testing::Bool()));

}  // namespace
}  // namespace stagecraft::shared_gradients_testing
