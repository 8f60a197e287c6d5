// Cutting a Sequential: by layers, cuts, bytes and measured time.

#include "stagecraft/runtime/split.h"

#include "pipeline_testing.h"

namespace stagecraft {
namespace {

using namespace pipeline_testing;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Gt;
namespace nn = torch::nn;

/// Takes long for few parameters.
struct SlowImpl : nn::Module {
  SlowImpl() { weight = register_parameter("weight", at::eye(16)); }
  Tensor forward(Tensor x) {
    for (int i = 0; i < 3000; ++i) x = at::matmul(x, weight);
    return x;
  }
  Tensor weight;
};
TORCH_MODULE(Slow);

nn::Sequential six_layers() {
  return nn::Sequential(nn::Embedding(100, 16), nn::BatchNorm1d(16), Slow(), nn::Dropout(0.5), nn::Linear(16, 16),
                        nn::Linear(16, 16));
}
Tensor tokens() { return at::arange(8); }

/// What all ranks say, which must be the same.
std::vector<std::int64_t> sizes_on_ranks(const nn::Sequential& model, int ranks, const SplitOptions& options) {
  std::mutex mutex;
  std::vector<std::vector<std::int64_t>> all;
  run_ranks(quick(ranks), [&](World& world) {
    SplitOptions own = options;
    if (!world.is_first()) own.sample = Tensor();
    const auto sizes = stage_sizes(model, world, {.split = own});
    const std::lock_guard lock(mutex);
    all.push_back(sizes);
  });
  EXPECT_THAT(all, Each(all[0]));
  return all[0];
}

TEST(Split, Evenly) { EXPECT_THAT(sizes_on_ranks(six_layers(), 4, {}), ElementsAre(2, 2, 1, 1)); }

TEST(Split, AsGiven) {
  EXPECT_THAT(sizes_on_ranks(six_layers(), 3, {.layers = {1, 4, 1}}), ElementsAre(1, 4, 1));
  EXPECT_THAT(sizes_on_ranks(six_layers(), 3, {.cuts = {1, 3}}), ElementsAre(1, 2, 3));
}

TEST(Split, ByBytesOfParametersEmbeddingAndHeadIncluded) {
  const nn::Sequential model(nn::Embedding(1000, 8), nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 8), nn::Tanh(),
                             nn::Linear(8, 500));
  EXPECT_THAT(layer_bytes(model), ElementsAre(32000, 288, 0, 288, 0, 18000));
  EXPECT_THAT(sizes_on_ranks(model, 2, {.balance = Balance::kParameters}), ElementsAre(1, 5));
  EXPECT_THAT(sizes_on_ranks(model, 3, {.balance = Balance::kParameters}), ElementsAre(1, 4, 1));
}

TEST(Split, ByMeasuredTime) {
  const nn::Sequential model = six_layers();
  EXPECT_THAT(sizes_on_ranks(model, 3, {.balance = Balance::kTime, .sample = tokens()}), ElementsAre(2, 1, 3));
}

TEST(Split, MeasuringLeavesNothingBehind) {
  const nn::Sequential model = six_layers();
  const Tensor mean = model->named_buffers()["1.running_mean"];
  const Tensor before = mean.clone();
  torch::manual_seed(1);
  const Tensor drawn = at::rand({3});
  torch::manual_seed(1);
  const std::vector<double> times = layer_times(model, tokens());
  EXPECT_TRUE(at::rand({3}).equal(drawn)) << "random state";
  ASSERT_EQ(times.size(), 6U);
  EXPECT_THAT(times, Each(Gt(0.0)));
  EXPECT_GT(times[2], 10 * times[4]);
  EXPECT_TRUE(mean.equal(before));
  for (const Tensor& parameter : model->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(Split, CutStagesTrain) {
  const nn::Sequential model(nn::Embedding(10, 4), nn::Linear(4, 4), nn::Tanh(), nn::Linear(4, 2));
  run_ranks(quick(2), [&](World& world) {
    std::vector<Stage> stages = split(model, world, {.split = {.balance = Balance::kTime, .sample = at::arange(6)}});
    Pipeline pipeline(world, std::move(stages), {.microbatches = 2, .loss = mean_square});
    pipeline.step({at::arange(6)}, {.target = at::ones({6, 2})});
    for (const auto& [name, parameter] : pipeline.named_parameters()) {
      EXPECT_TRUE(parameter.grad().defined()) << name;
      EXPECT_TRUE(parameter.is_same(model->named_parameters()[name]));
    }
  });
}

TEST(Split, DropoutDoesNotDependOnTheCut) {
  const nn::Sequential model(nn::Linear(4, 4), nn::Dropout(0.5), nn::Linear(4, 4), nn::Dropout(0.5), nn::Linear(4, 4));
  const Tensor x = at::randn({6, 4});
  const auto loss_of = [&](int ranks, const SplitOptions& options) {
    double loss = 0;
    run_ranks(quick(ranks), [&](World& world) {
      Pipeline pipeline(world, model, {.microbatches = 3, .loss = mean_square, .seed = 5, .split = options});
      const StepResult result = pipeline.step({x}, {.target = x});
      if (world.is_last()) loss = result.loss();
    });
    return loss;
  };
  const double whole = loss_of(1, {});
  EXPECT_EQ(loss_of(2, {}), whole);
  EXPECT_EQ(loss_of(2, {.layers = {1, 4}}), whole);
  EXPECT_EQ(loss_of(3, {.cuts = {1, 3}}), whole);
  EXPECT_EQ(loss_of(5, {}), whole);
}

TEST(Split, WhatDoesNotFit) {
  const nn::Sequential model = six_layers();
  const auto message = [&](int ranks, const SplitOptions& options) {
    return message_of([&] { run_ranks(quick(ranks), [&](World& world) { split(model, world, {.split = options}); }); });
  };
  EXPECT_THAT(message(7, {}), HasSubstr("6 layers cannot be cut into 7 stages"));
  EXPECT_THAT(message(3, {.layers = {3, 3}}), HasSubstr("layers are [3, 3], but there are 3 stages and 6 layers"));
  EXPECT_THAT(message(3, {.layers = {3, 0, 3}}), HasSubstr("every stage has at least one"));
  EXPECT_THAT(message(3, {.cuts = {2, 2}}), HasSubstr("cuts are [2, 2], but 3 stages of 6 layers need 2 cuts"));
  EXPECT_THAT(message(3, {.cuts = {2}}), HasSubstr("need 2 cuts that ascend between 0 and 6"));
  EXPECT_THAT(message(3, {.cuts = {2, 6}}), HasSubstr("cuts are [2, 6]"));
  EXPECT_THAT(message(3, {.balance = Balance::kTime, .cuts = {2, 4}}), HasSubstr("not 2"));
  EXPECT_THAT(message(3, {.balance = Balance::kTime}), HasSubstr("give SplitOptions a sample"));
  EXPECT_THAT(message(3, {.balance = Balance::kTime, .sample = at::ones({2, 3})}),
              AllOf(HasSubstr("layer 0 fails on Float [2, 3]"), HasSubstr("give a sample that the model takes")));
}

TEST(Split, ThePipelineCutsForItsSchedule) {
  run_ranks(quick(2), [](World& world) {
    const nn::Sequential model = six_layers();
    const Pipeline named(world, model, {.schedule = "InterleavedZeroBubble", .stages_per_rank = 3, .microbatches = 2});
    EXPECT_EQ(named.stages().size(), 3U);
    EXPECT_EQ(named.schedule().stages(), 6);
    const Pipeline own(world, model,
                       {.schedule = make_schedule("ZBVZeroBubble", {.ranks = 2, .microbatches = 3}),
                        .split = {.layers = {1, 2, 1, 2}}});
    EXPECT_EQ(own.schedule().microbatches, 3);
    EXPECT_EQ(own.stages()[0].index(), StageId(world.rank().value));
    EXPECT_EQ(own.stages()[1].index(), StageId(3 - world.rank().value));
  });
}

TEST(Split, LazyLayersAreMadeWhereTheyAreNeededAndAlikeOnAnyRanks) {
  const auto layers_made_on = [](int ranks, std::vector<std::vector<int>>& made, std::vector<Tensor>& weights) {
    made.assign(static_cast<std::size_t>(ranks), {});
    weights.assign(5, Tensor());
    std::mutex mutex;
    run_ranks(quick(ranks), [&](World& world) {
      LazyLayers model;
      for (int layer = 0; layer < 5; ++layer) {
        model.add([&, layer] {
          made[world.rank().index()].push_back(layer);
          return nn::Linear(4, 4);
        });
      }
      Pipeline pipeline(world, model, {.microbatches = 2, .loss = mean_square, .seed = 9});
      const Tensor x = at::ones({4, 4});
      pipeline.step({x}, {.target = x});
      const std::lock_guard lock(mutex);
      for (const auto& [name, parameter] : pipeline.named_parameters()) {
        if (name.ends_with(".weight")) weights[static_cast<std::size_t>(std::stoi(name))] = parameter.detach();
      }
    });
  };
  std::vector<std::vector<int>> made;
  std::vector<Tensor> whole, cut;
  layers_made_on(1, made, whole);
  EXPECT_THAT(made[0], ElementsAre(0, 1, 2, 3, 4));
  layers_made_on(3, made, cut);
  EXPECT_THAT(made, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
  for (std::size_t layer = 0; layer < 5; ++layer) EXPECT_TRUE(cut[layer].equal(whole[layer])) << layer;
  EXPECT_FALSE(whole[0].equal(whole[1]));
}

TEST(Split, LazyLayersDropOutAndResumeAlikeInAnyLayout) {
  const std::string path = testing::TempDir() + "lazy_layers.safetensors";
  const Tensor x = at::randn({8, 4}), y = at::randn({8, 4});
  /// The losses of two steps, after those of the file if there is one.
  const auto losses_on = [&](int ranks, int replicas, bool resume) {
    std::vector<double> losses;
    run_ranks({.ranks = ranks, .replicas = replicas, .threads_per_rank = 1, .timeout = kPatience}, [&](World& world) {
      LazyLayers model;
      for (int layer = 0; layer < 3; ++layer) {
        model.add([] { return nn::Linear(4, 4); }).add([] { return nn::Dropout(0.5); });
      }
      Pipeline pipeline(
          world, model,
          {.microbatches = 4 / replicas, .loss = mean_square, .broadcast_loss = true, .seed = resume ? 1U : 9U});
      torch::optim::SGD optimizer(pipeline.parameters(), 0.1);
      // Its seed makes other weights, which the file replaces.
      if (resume) load_checkpoint(world, pipeline, path);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        const StepResult result = pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});
        optimizer.step();
        if (world.world_rank().value == 0) losses.push_back(result.loss());
      }
      if (!resume) save_checkpoint(world, pipeline, path);
    });
    return losses;
  };
  const std::vector<double> first = losses_on(1, 1, false);
  EXPECT_NE(first[0], first[1]);
  for (const auto& [ranks, replicas] : std::vector<std::pair<int, int>>{{3, 1}, {2, 2}, {1, 2}}) {
    const std::vector<double> other = losses_on(ranks, replicas, false);
    for (std::size_t step = 0; step < 2; ++step) EXPECT_NEAR(other[step], first[step], 1e-6) << ranks << replicas;
  }
  const std::vector<double> resumed = losses_on(1, 1, true);
  for (const auto& [ranks, replicas] : std::vector<std::pair<int, int>>{{3, 1}, {2, 2}, {1, 2}}) {
    const std::vector<double> other = losses_on(ranks, replicas, true);
    for (std::size_t step = 0; step < 2; ++step) EXPECT_NEAR(other[step], resumed[step], 1e-6) << ranks << replicas;
  }
}

}  // namespace
}  // namespace stagecraft
