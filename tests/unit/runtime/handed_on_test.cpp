// What a stage returns of its buffers: the next microbatch writes there before the next stage, or the caller, has read.

#include "pipeline_testing.h"

namespace stagecraft::handed_on_testing {
namespace {

using namespace pipeline_testing;

constexpr std::int64_t kWidth = 4;
constexpr int kMicrobatches = 4;

/// Computes in memory that it keeps.
struct Workspace : torch::nn::Module {
  Workspace()
      : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))),
        work(register_buffer("work", at::zeros({2, kWidth}))) {}

  Tensor forward(const Tensor& x) {
    Tensor y = work.detach();
    y.copy_(at::tanh(linear(x)));
    return y;
  }

  torch::nn::Linear linear;
  Tensor work;
};

/// Counts its calls in a buffer, and hands on a view of it that is larger than its memory.
struct Counter : torch::nn::Module {
  Counter() : count(register_buffer("count", at::zeros({1, 1}))) {}

  ValueList forward(const Tensor& x) {
    count.add_(1);
    return {x, count.expand({2, kWidth})};
  }

  Tensor count;
};

Tensor loss_of(const Value& output, const Value& target, const ValueDict&) {
  return (as_arguments(output)[0].tensor() - target.tensor()).pow(2).mean();
}

class HandedOn : public testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(HandedOn, HasTheNumbersAndGradientsOfOneDevice) {
  const auto& [schedule, ranks] = GetParam();
  const Tensor x = numbers({2 * kMicrobatches, kWidth}, 1).to(at::kFloat);
  const Tensor y = numbers({2 * kMicrobatches, kWidth}, 2).to(at::kFloat);
  torch::manual_seed(3);
  std::vector<std::shared_ptr<Workspace>> modules;
  for (int s = 0; s < 4; ++s) modules.push_back(std::make_shared<Workspace>());
  std::vector<Tensor> losses, outputs;
  std::vector<std::vector<Tensor>> expected(4);
  for (int m = 0; m < kMicrobatches; ++m) {
    Tensor value = x.narrow(0, 2 * m, 2);
    for (const auto& one : modules) value = one->forward(value);
    losses.push_back((value - y.narrow(0, 2 * m, 2)).pow(2).mean());
    outputs.push_back(value.detach().clone());
    (losses.back() / kMicrobatches).backward();
  }
  for (std::size_t s = 0; s < 4; ++s) {
    for (const Tensor& parameter : modules[s]->parameters()) expected[s].push_back(parameter.grad().clone());
    modules[s]->zero_grad();
  }
  run_ranks(quick(ranks), [&, schedule = schedule](World& world) {
    std::vector<Stage> stages;
    for (int s = world.rank().value; s < 4; s += world.size()) {
      const auto& module = modules[static_cast<std::size_t>(s)];
      stages.push_back(
          make_stage(s, module, [module](const StageCall& call) { return Value(module->forward(call.tensor(0))); }));
    }
    Pipeline pipeline(
        world, std::move(stages),
        {.schedule = schedule, .stages_per_rank = 4 / world.size(), .microbatches = kMicrobatches, .loss = loss_of});
    const StepResult result = pipeline.step({x}, {.target = y, .return_outputs = true});
    if (!pipeline.has_last_stage()) return;
    for (std::size_t m = 0; m < losses.size(); ++m) EXPECT_TRUE(at::equal(result.losses[m], losses[m].detach())) << m;
    EXPECT_TRUE(at::equal(as_arguments(result.output)[0].tensor(), at::cat(outputs)));
  });
  for (std::size_t s = 0; s < 4; ++s) {
    const std::vector<Tensor> all = modules[s]->parameters();
    for (std::size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE("stage " + std::to_string(s) + ", parameter " + std::to_string(i));
      ASSERT_TRUE(all[i].grad().defined());
      EXPECT_LT((all[i].grad() - expected[s][i]).abs().max().item<double>(), 1e-6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, HandedOn,
                         testing::Combine(testing::Values("LoopedBFS", "InterleavedZeroBubble"),
                                          testing::Values(1, 2, 4)));

TEST(ExpandedBuffers, AreThoseOfTheirMicrobatch) {
  const Tensor x = at::zeros({2 * kMicrobatches, kWidth});
  run_ranks(quick(2), [&](World& world) {
    const auto counter = std::make_shared<Counter>();
    const auto none = std::make_shared<torch::nn::Module>();
    std::vector<Stage> stages;
    if (world.rank().value == 0) {
      stages.push_back(
          make_stage(0, counter, [&](const StageCall& call) { return Value(counter->forward(call.tensor(0))); }));
    } else {
      stages.push_back(
          make_stage(1, none, [](const StageCall& call) { return Value(call.tensor(0) + call.tensor(1)); }));
    }
    Pipeline pipeline(world, std::move(stages), {.schedule = "GPipe", .microbatches = kMicrobatches});
    const StepResult result = pipeline.eval({x});
    if (!pipeline.has_last_stage()) return;
    const Tensor output = as_arguments(result.output)[0].tensor();
    for (int m = 0; m < kMicrobatches; ++m) {
      EXPECT_TRUE(at::equal(output.narrow(0, 2 * m, 2), at::full({2, kWidth}, m + 1.0))) << m;
    }
  });
}

}  // namespace
}  // namespace stagecraft::handed_on_testing
