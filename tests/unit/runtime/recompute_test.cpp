// Activation recompute: the same losses, gradients and buffers, and less memory.

#include <ATen/record_function.h>

#include "pipeline_testing.h"
#include "support/schedule_names.h"

namespace stagecraft {
namespace {

using pipeline_testing::HasSubstr;
using pipeline_testing::mean_square;
using pipeline_testing::numbers;
using pipeline_testing::quick;
using pipeline_testing::Sayings;
using torch::Tensor;

constexpr std::int64_t kWidth = 6;

/// Two blocks for each stage: a layer that keeps statistics, one that works in place, and dropout.
torch::nn::Sequential model_of(int blocks) {
  torch::nn::Sequential model;
  for (int i = 0; i < blocks; ++i) {
    model->push_back("linear" + std::to_string(i), torch::nn::Linear(kWidth, kWidth));
    model->push_back("norm" + std::to_string(i), torch::nn::BatchNorm1d(kWidth));
    model->push_back("relu" + std::to_string(i), torch::nn::ReLU(torch::nn::ReLUOptions(true)));
    model->push_back("drop" + std::to_string(i), torch::nn::Dropout(0.3));
  }
  model->to(at::kDouble);
  double phase = 0;
  const torch::NoGradGuard no_graph;
  for (Tensor& parameter : model->parameters()) parameter.copy_(numbers(parameter.sizes().vec(), phase += 1));
  return model;
}

struct Left {
  std::map<std::string, Tensor> tensors;  // losses, gradients and buffers by name
};

/// What two accumulated steps leave behind.
Left train(const std::string& schedule, int ranks, int replicas, const Recompute& recompute, bool by_position) {
  constexpr int kMicrobatches = 4;
  Left left;
  std::mutex mutex;
  run_ranks({.ranks = ranks, .replicas = replicas, .threads_per_rank = 1, .timeout = kPatience}, [&](World& world) {
    const auto per_rank = static_cast<int>(stages_here(world, schedule).size());
    torch::nn::Sequential model = model_of(2 * per_rank * ranks);
    PipelineOptions options = {.schedule = schedule,
                               .microbatches = kMicrobatches,
                               .loss = mean_square,
                               .broadcast_loss = true,
                               .seed = 7,
                               .recompute = recompute};
    std::vector<Stage> stages;
    if (by_position) {
      stages = split(model, world, options);
    } else {
      for (const StageId stage : stages_here(world, schedule)) {
        torch::nn::Sequential own;
        for (int i = 8 * stage.value; i < 8 * stage.value + 8; ++i) {
          own->push_back(model->named_children().keys()[static_cast<std::size_t>(i)], *(model->begin() + i));
        }
        stages.push_back(make_stage(stage.value, own));
      }
    }
    Pipeline pipeline(world, std::move(stages), options);
    std::map<std::string, Tensor> own;
    for (int step = 0; step < 2; ++step) {
      const Tensor x = world.share_of(numbers({12 * replicas, kWidth}, step));
      const StepResult result = pipeline.step({x}, {.target = x * 0.5});
      own["loss " + std::to_string(step)] = at::tensor(result.loss(), at::kDouble);
      pipeline.eval({x}, {.target = x});
    }
    for (const auto& [name, parameter] : pipeline.named_parameters()) own[name] = parameter.grad();
    for (const Stage& stage : pipeline.stages()) {
      for (const auto& [name, buffer] : stage.buffers()) own[name] = buffer;
    }
    const std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : own) left.tensors[name + " of " + std::to_string(world.replica())] = tensor;
  });
  return left;
}

void expect_same(const Left& got, const Left& expected) {
  ASSERT_EQ(got.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    EXPECT_TRUE(at::equal(got.tensors.at(name), tensor)) << name << " is not the same bit for bit";
  }
}

class RecomputeOf : public testing::TestWithParam<std::string> {};

TEST_P(RecomputeOf, AnythingChangesNothing) {
  const std::vector<std::pair<std::string, Recompute>> kinds = {
      {"stage", Recompute::stage()},
      {"every layer", Recompute::every(1)},
      {"every three layers", Recompute::every(3)},
      {"more layers than there are", Recompute::every(100)},
      {"relu and drop", Recompute::where([](const std::string& name) { return name[0] == 'r' || name[0] == 'd'; })},
      {"none by name", Recompute::where([](const std::string&) { return false; })}};
  int settings = 0;
  for (const auto& [ranks, replicas] : {std::pair(1, 1), {2, 1}, {3, 1}, {2, 2}}) {
    for (const bool by_position : {true, false}) {
      std::optional<Left> plain;
      for (const auto& [name, recompute] : kinds) {
        if (++settings % 3 != 0) continue;
        SCOPED_TRACE(name + ", " + std::to_string(ranks) + " ranks x " + std::to_string(replicas));
        if (!plain) plain = train(GetParam(), ranks, replicas, {}, by_position);
        expect_same(train(GetParam(), ranks, replicas, recompute, by_position), *plain);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, RecomputeOf, testing::ValuesIn(training_schedules()), test_name);

/// One rank, one stage, GPipe: all forwards run before the first backward.
StepResult step_of(World& world, Stage stage, const Recompute& recompute, int microbatches, const ValueList& arguments,
                   const StepOptions& options) {
  Pipeline pipeline(world, {std::move(stage)},
                    {.schedule = "GPipe", .microbatches = microbatches, .loss = mean_square, .recompute = recompute});
  return pipeline.step(arguments, options);
}

TEST(Recompute, KeepsOnlyTheInputsOfWhatIsInFlight) {
  constexpr std::int64_t kBig = 128;
  constexpr int kMicrobatches = 8;
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  const auto peak_of = [&](const Recompute& recompute) {
    std::vector<Weak> made;
    std::int64_t peak = 0;
    std::vector<StageLayer> layers;
    for (int i = 0; i < 4; ++i) {
      layers.push_back({std::to_string(i), [&](const StageCall& call) -> Value {
                          const Tensor y = call.tensor(0).exp();  // kept for its gradient
                          made.emplace_back(
                              c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(y.storage().unsafeGetStorageImpl()));
                          std::int64_t alive = 0;
                          for (const Weak& one : made) alive += one.expired() ? 0 : 1;
                          peak = std::max(peak, alive);
                          return y;
                        }});
    }
    const Stage::Forward all = [&](const StageCall& call) -> Value {
      Value value = call.arguments[0];
      for (const StageLayer& layer : layers) {
        const ValueList arguments = {value};
        value = layer.forward({call.stage, call.microbatch, arguments, call.keywords});
      }
      return value;
    };
    StageOptions options;
    options.layers = [&] { return layers; };
    run_ranks(quick(1), [&](World& world) {
      const Tensor x = at::zeros({kMicrobatches * kBig, kBig}).requires_grad_(true);
      step_of(world, Stage(0, all, {}, {}, {}, options), recompute, kMicrobatches, {x}, {.target = x.detach()});
    });
    return peak;
  };
  EXPECT_GE(peak_of({}), 4 * kMicrobatches);
  // The stage's inputs are the user's own: only the microbatch that is computed has activations.
  EXPECT_LE(peak_of(Recompute::stage()), 4 + 1);
  // Kept: what crosses between two segments, of every microbatch; and the activations of one segment.
  EXPECT_LE(peak_of(Recompute::every(2)), kMicrobatches + 2 + 1);
  EXPECT_LE(peak_of(Recompute::every(1)), 3 * kMicrobatches + 1 + 1);
}

TEST(Recompute, DrawsTheSameNumbersWhereALayerContinuesItsStream) {
  // All layers draw from the stage's one stream, so the second begins where the first has stopped.
  const auto gradients = [](const Recompute& recompute) {
    Tensor gradient;
    run_ranks(quick(1), [&](World& world) {
      const Tensor weight = numbers({kWidth, kWidth}, 1).requires_grad_(true);
      std::vector<StageLayer> layers(3, StageLayer{"same", [weight](const StageCall& call) -> Value {
                                                     return at::dropout(at::matmul(call.tensor(0), weight), 0.5, true);
                                                   }});
      StageOptions options;
      options.layers = [layers] { return layers; };
      const Stage stage(
          0,
          [layers](const StageCall& call) -> Value {
            Value value = call.arguments[0];
            for (const StageLayer& layer : layers) {
              const ValueList arguments = {value};
              value = layer.forward({call.stage, call.microbatch, arguments, call.keywords});
            }
            return value;
          },
          {{"weight", weight}}, {}, {}, options);
      const Tensor x = numbers({8, kWidth}, 2);
      step_of(world, stage, recompute, 2, {x}, {.target = x});
      gradient = weight.grad();
    });
    return gradient;
  };
  const Tensor expected = gradients({});
  EXPECT_TRUE(at::equal(gradients(Recompute::stage()), expected));
  EXPECT_LT((gradients(Recompute::every(1)) - expected).abs().max().item<double>(), 1e-12);
}

TEST(Recompute, UsesTheBuffersOfTheFirstForward) {
  // What the stage computes depends on how often it has run.
  const auto result = [](const Recompute& recompute) {
    std::pair<Tensor, Tensor> gradient_and_count;
    run_ranks(quick(1), [&](World& world) {
      const Tensor weight = at::ones({1}, at::kDouble).requires_grad_(true);
      const Tensor count = at::ones({1}, at::kDouble);
      const Stage stage(0,
                        [weight, count](const StageCall& call) -> Value {
                          const Tensor now = count.clone();
                          count.add_(1);
                          return call.tensor(0) * weight * now;
                        },
                        {{"weight", weight}}, {{"count", count}});
      const Tensor x = numbers({4, 1}, 0);
      step_of(world, stage, recompute, 4, {x}, {.target = x});
      gradient_and_count = {weight.grad(), count};
    });
    return gradient_and_count;
  };
  const auto expected = result({});
  const auto got = result(Recompute::stage());
  EXPECT_TRUE(at::equal(got.first, expected.first));
  EXPECT_EQ(got.second.item<double>(), 5);
}

thread_local int comparisons = 0;

/// Counts the comparisons of tensors on this thread: a captured step must do none.
at::CallbackHandle count_comparisons() {
  const auto count = [](const at::RecordFunction& operation) -> std::unique_ptr<at::ObserverContext> {
    comparisons += std::string_view(operation.name()) == "aten::equal" ? 1 : 0;
    return nullptr;
  };
  return at::addThreadLocalCallback(at::RecordFunctionCallback(count).scopes({at::RecordScope::FUNCTION}));
}

TEST(Recompute, KnowsThatStatisticsStandStillInEvaluationMode) {
  std::vector<int> compared;  // until after each step
  const auto result = [&](const Recompute& recompute) {
    std::vector<Tensor> all;
    compared.clear();
    run_ranks(quick(1), [&](World& world) {
      torch::manual_seed(3);
      const auto norm = std::make_shared<torch::nn::BatchNorm1dImpl>(torch::nn::BatchNorm1dOptions(kWidth));
      norm->to(at::kDouble);
      Pipeline pipeline(world, {make_stage(0, norm)},
                        {.schedule = "GPipe", .microbatches = 2, .loss = mean_square, .recompute = recompute});
      comparisons = 0;
      const at::CallbackHandle counts = count_comparisons();
      for (const bool trains : {false, true, true, false, true, false}) {
        norm->train(trains);
        pipeline.step({numbers({8, kWidth}, trains)}, {.target = numbers({8, kWidth}, 5)});
        for (const Tensor& buffer : norm->buffers()) all.push_back(buffer.clone());
        compared.push_back(comparisons);
      }
      at::removeCallback(counts);
    });
    return all;
  };
  const auto expected = result({});
  const auto got = result(Recompute::stage());
  EXPECT_THAT(compared, testing::ElementsAre(3, 6, 6, 6, 6, 6)) << "it learns once in each mode";
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
}

TEST(Recompute, LeavesTheBatchAsItIs) {
  run_ranks(quick(1), [&](World& world) {
    const Tensor weight = numbers({kWidth, kWidth}, 1).requires_grad_(true);
    const Stage stage(0,
                      [weight](const StageCall& call) -> Value { return at::matmul(call.tensor(0).mul_(1.5), weight); },
                      {{"weight", weight}});
    const Tensor x = numbers({8, kWidth}, 2);
    const Tensor before = x.clone();
    step_of(world, stage, Recompute::stage(), 4, {x}, {.target = before});
    EXPECT_TRUE(at::equal(x, before));
    const Tensor expected = [&] {
      const Tensor again = numbers({kWidth, kWidth}, 1).requires_grad_(true);
      (at::matmul(before * 1.5, again) - before).pow(2).mean().backward();
      return again.grad();
    }();
    pipeline_testing::expect_close(weight.grad(), expected);
  });
}

TEST(Recompute, GivesKeywordsAndInputsTheirGradients) {
  for (const Recompute& recompute : {Recompute(), Recompute::stage()}) {
    run_ranks(quick(1), [&](World& world) {
      const Tensor x = numbers({4, 2}, 0).requires_grad_(true);
      const Tensor shift = numbers({4, 2}, 3).requires_grad_(true);
      const Stage stage(
          0,
          [](const StageCall& call) -> Value { return call.tensor(0).pow(2) * call.keyword("shift").tensor().exp(); },
          {});
      step_of(world, stage, recompute, 2, {x},
              {.target = at::zeros({4, 2}, at::kDouble), .keywords = {{"shift", shift}}});
      const Tensor a = x.detach().clone().requires_grad_(true);
      const Tensor b = shift.detach().clone().requires_grad_(true);
      (a.pow(2) * b.exp()).pow(2).mean().backward();
      pipeline_testing::expect_close(x.grad(), a.grad());
      pipeline_testing::expect_close(shift.grad(), b.grad());
    });
  }
}

TEST(Recompute, OfAStageThatDrawsFromItsOwnGeneratorIsRefusedOnAllRanks) {
  Sayings sayings;
  run_ranks(quick(2), [&](World& world) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
    const Tensor weight = at::ones({2}).requires_grad_(true);
    const Stage stage(world.rank().value,
                      [=](const StageCall& call) -> Value {
                        return call.tensor(0) * weight *
                               at::rand({2}, generator, call.tensor(0).options().requires_grad(false));
                      },
                      {{"weight", weight}});
    Pipeline pipeline(world, {stage}, {.microbatches = 2, .loss = mean_square, .recompute = Recompute::stage()});
    sayings.add(world.rank(), message_of([&] { pipeline.step({at::ones({4, 2})}, {.target = at::ones({4, 2})}); }));
  });
  for (const int rank : {0, 1}) EXPECT_THAT(sayings.of(rank), HasSubstr("from a generator of its own"));
}

TEST(Recompute, ThatCannotBeIsRefused) {
  run_ranks(quick(1), [&](World& world) {
    const auto refusal = [&](const Stage& stage, const Recompute& recompute) {
      return message_of(
          [&] { Pipeline pipeline(world, {stage}, {.microbatches = 1, .loss = mean_square, .recompute = recompute}); });
    };
    const Stage plain(0, [](const StageCall& call) -> Value { return call.tensor(0); }, {});
    EXPECT_THAT(refusal(plain, Recompute::every(2)), HasSubstr("stage 0 has no layers"));
    EXPECT_THAT(refusal(plain, Recompute::where([](const std::string&) { return true; })), HasSubstr("has no layers"));
    EXPECT_THAT(refusal(make_stage(0, model_of(1)), Recompute::every(0)), HasSubstr("at least 1 layer, got 0"));
    StageOptions options;
    options.auxiliary_loss = [](const Value& output) { return output.tensor().mean(); };
    EXPECT_THAT(refusal(make_stage(0, model_of(1), options), Recompute::every(1)), HasSubstr("auxiliary loss"));
    // A stage's own choice counts.
    options = {};
    options.recompute = Recompute();
    const Stage without(
        0, [](const StageCall& call) -> Value { return call.tensor(0); }, {}, {}, {}, options);
    EXPECT_NO_THROW(Pipeline(world, {without}, {.microbatches = 1, .recompute = Recompute::every(2)}));
  });
}

TEST(Recompute, IsSavedWhereTheBackwardComesNext) {
  // 1F1B computes the last stage's backward right after its forward.
  int forwards = 0;
  run_ranks(quick(1), [&](World& world) {
    const Tensor weight = at::ones({2}).requires_grad_(true);
    const Stage stage(0,
                      [&](const StageCall& call) -> Value {
                        ++forwards;
                        return call.tensor(0) * weight;
                      },
                      {{"weight", weight}});
    Pipeline pipeline(world, {stage},
                      {.schedule = "1F1B", .microbatches = 4, .loss = mean_square, .recompute = Recompute::stage()});
    pipeline.step({at::ones({4, 2})}, {.target = at::ones({4, 2})});
  });
  EXPECT_EQ(forwards, 4);
}

}  // namespace
}  // namespace stagecraft
