// Steps without a loss, batches that are cut by hand, and parameters that are not trained.

#include "pipeline_testing.h"

namespace stagecraft {
namespace {

using pipeline_testing::HasSubstr;
using pipeline_testing::mean_square;
using pipeline_testing::numbers;
using pipeline_testing::quick;
using pipeline_testing::Sayings;
using torch::Tensor;

TEST(StepWithoutLoss, RunsTheForwardInTrainingMode) {
  run_ranks(quick(2), [&](World& world) {
    torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Dropout(0.5), torch::nn::Linear(4, 4));
    model->to(at::kDouble);
    Pipeline pipeline(world, model, {.microbatches = 2, .split = {.layers = {2, 1}}});
    const Tensor x = numbers({6, 4}, 0);
    const auto output = [&](auto run) {
      const StepResult result = run();
      EXPECT_EQ(result.output.is_none(), !pipeline.has_last_stage());
      EXPECT_FALSE(result.has_loss());
      return pipeline.has_last_stage() ? result.output.tensor() : Tensor();
    };
    const Tensor first = output([&] { return pipeline.step({x}); });
    const Tensor second = output([&] { return pipeline.step({x}); });
    EXPECT_EQ(pipeline.steps(), 2);
    const Tensor evaluated = output([&] { return pipeline.eval({x}); });
    EXPECT_EQ(pipeline.steps(), 2);
    pipeline.set_steps(0);
    const Tensor again = output([&] { return pipeline.step({x}); });
    for (const Tensor& parameter : pipeline.parameters()) EXPECT_FALSE(parameter.grad().defined());
    if (!pipeline.has_last_stage()) return;
    EXPECT_FALSE(first.requires_grad());
    EXPECT_TRUE(at::equal(first, again));  // dropout by the number of the step
    EXPECT_FALSE(at::equal(first, second));
    EXPECT_FALSE(at::equal(first, evaluated));  // which has none
  });
}

/// The caller may change its batch in place as soon as its step returns, while another rank still reads.
TEST(StepWithoutLoss, OtherRanksGetCopiesOfInputsThatPassThrough) {
  const Tensor batch = numbers({6, 4}, 0);
  std::atomic<int> seen = 0;
  run_ranks(quick(2), [&](World& world) {
    const bool is_first = world.rank().value == 0;
    Stage stage(
        world.rank().value,
        [&](const StageCall& call) -> Value {
          if (is_first) return ValueList{call.tensor(0) * 2, call.tensor(0), call.tensor(0).t()};
          for (const std::size_t i : {1U, 2U}) {
            EXPECT_FALSE(call.tensor(i).is_alias_of(batch));
            ++seen;
          }
          EXPECT_TRUE(at::equal(call.tensor(0), call.tensor(1) * 2));
          EXPECT_TRUE(at::equal(call.tensor(1), call.tensor(2).t()));
          return call.tensor(0);
        },
        {}, {}, [] { return std::function<void()>([] {}); }, {});
    Pipeline pipeline(world, {stage}, {.microbatches = 3});
    pipeline.step({batch});
  });
  EXPECT_EQ(seen, 6);
}

TEST(StepWithoutLoss, KeepsBuffersEqualOnAllReplicas) {
  std::map<int, Tensor> statistics;
  std::mutex mutex;
  run_ranks({.ranks = 1, .replicas = 2, .timeout = kPatience}, [&](World& world) {
    torch::nn::Sequential model(torch::nn::BatchNorm1d(4));
    model->to(at::kDouble);
    Pipeline pipeline(world, model, {.microbatches = 1});
    pipeline.step({world.share_of(numbers({8, 4}, 0))});
    const std::lock_guard lock(mutex);
    statistics[world.replica()] = model->named_buffers()["0.running_mean"].clone();
  });
  EXPECT_TRUE(at::equal(statistics.at(0), statistics.at(1)));
  EXPECT_GT(statistics.at(0).abs().max().item<double>(), 0);
}

TEST(StepWithoutLoss, RefusesATargetOnAllRanks) {
  Sayings sayings;
  run_ranks(quick(2), [&](World& world) {
    Pipeline pipeline(world, {pipeline_testing::stage_for(world)}, {.microbatches = 1});
    const Tensor x = numbers({6, 4}, 0).to(at::kFloat);
    sayings.add(world.rank(), message_of([&] { pipeline.step({x}, {.target = x}); }));
    EXPECT_NO_THROW(pipeline.step({x}));
  });
  for (const int rank : {0, 1}) EXPECT_THAT(sayings.of(rank), HasSubstr("there is a target, but no loss"));
}

TEST(Freeze, KeepsTheParametersThatFit) {
  run_ranks(quick(2), [&](World& world) {
    torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    Pipeline pipeline(world, model, {.microbatches = 1, .loss = mean_square, .freeze = {"0.*", "*.bias"}});
    torch::optim::AdamW optimizer(pipeline.parameters());
    const Tensor x = numbers({6, 4}, 0).to(at::kFloat);
    std::map<std::string, Tensor> before;
    for (const auto& [name, parameter] : pipeline.named_parameters()) before[name] = parameter.detach().clone();
    pipeline.step({x}, {.target = x});
    optimizer.step();
    for (const auto& [name, parameter] : pipeline.named_parameters()) {
      EXPECT_EQ(at::equal(parameter, before[name]), name != "1.weight") << name;
    }
    EXPECT_THAT(message_of([&] {
                  Pipeline other(world, torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4)),
                                 {.microbatches = 1, .loss = mean_square, .freeze = {"2.*"}});
                }),
                HasSubstr("freeze '2.*' fits no parameter of the model"));
  });
}

/// Multiplies by a number that comes with every microbatch, beside one that is cut from the batch.
Stage scaled(int index) {
  return Stage(index,
               [](const StageCall& call) {
                 return Value(call.tensor(0) * call.keyword("factor").real() + call.keyword("shift").tensor());
               },
               {});
}

TEST(MicrobatchKeywords, GoToTheirMicrobatch) {
  run_ranks(quick(2), [&](World& world) {
    Pipeline pipeline(world, {scaled(world.rank().value)}, {.microbatches = 3});
    const Tensor x = numbers({6, 2}, 0);
    const Tensor shift = numbers({6, 1}, 5);
    std::vector<ValueDict> factors;
    for (int m = 0; m < 3; ++m) factors.push_back({{"factor", Value(m + 2.0)}});
    const StepOptions options = {.keywords = {{"shift", shift}}, .microbatch_keywords = factors};
    Tensor expected = x;
    for (int stage = 0; stage < 2; ++stage) {
      std::vector<Tensor> parts = expected.chunk(3);
      for (int m = 0; m < 3; ++m) {
        parts[static_cast<std::size_t>(m)] =
            parts[static_cast<std::size_t>(m)] * (m + 2.0) + shift.chunk(3)[static_cast<std::size_t>(m)];
      }
      expected = at::cat(parts);
    }
    std::vector<ValueList> by_hand;
    for (const Tensor& part : x.chunk(3)) by_hand.push_back({part});
    const std::vector<StepResult> results = {pipeline.step({x}, options), pipeline.eval({x}, options),
                                             pipeline.step_microbatches(by_hand, {}, options),
                                             pipeline.eval_microbatches(by_hand, {}, options)};
    if (pipeline.has_last_stage()) {
      for (const StepResult& result : results) EXPECT_TRUE(at::equal(result.output.tensor(), expected));
    }
    const auto why = [&](const StepOptions& wrong) { return message_of([&] { pipeline.eval({x}, wrong); }); };
    EXPECT_THAT(why({.microbatch_keywords = {{}, {}}}),
                HasSubstr("there are 3 microbatches, but 2 dictionaries of keywords"));
    EXPECT_THAT(why({.keywords = {{"factor", Value(1.0)}}, .microbatch_keywords = factors}),
                HasSubstr("the keyword 'factor' is given twice"));
  });
}

TEST(EvalMicrobatches, GivesTheLossesOfTheirTargets) {
  run_ranks(quick(2), [&](World& world) {
    Pipeline pipeline(world, {pipeline_testing::stage_for(world)},
                      {.microbatches = 2, .loss = mean_square, .broadcast_loss = true});
    const Tensor x = numbers({6, 4}, 0).to(at::kFloat);
    const std::vector<Value> targets = {x.narrow(0, 0, 2), x.narrow(0, 2, 4)};
    const StepResult cut = pipeline.eval_microbatches({{x.narrow(0, 0, 2)}, {x.narrow(0, 2, 4)}}, targets);
    const StepResult whole = pipeline.eval({x}, {.target = x});
    EXPECT_EQ(cut.losses.size(), 2);
    EXPECT_NEAR(cut.loss(), whole.loss(), 1e-6);
    for (const Tensor& parameter : pipeline.parameters()) EXPECT_FALSE(parameter.grad().defined());
  });
}

}  // namespace
}  // namespace stagecraft
