// Mixed precision: masters of another type than what modules compute with, autocast, and scaled losses.

#include <ATen/autocast_mode.h>

#include <filesystem>

#include "pipeline_testing.h"
#include "stagecraft/data_parallel/masters.h"
#include "support/scratch_folder.h"

namespace stagecraft {
namespace {

using pipeline_testing::HasSubstr;
using pipeline_testing::mean_square;
using pipeline_testing::numbers;
using pipeline_testing::Sayings;
using torch::Tensor;

constexpr int kMicrobatches = 3;
constexpr std::int64_t kRows = 12;
constexpr std::int64_t kWidth = 6;

torch::nn::Sequential float_layers(int count) {
  torch::nn::Sequential model;
  for (int i = 0; i < count; ++i) {
    model->push_back(torch::nn::Linear(kWidth, kWidth));
    model->push_back(torch::nn::Tanh());
  }
  double phase = 0;
  const torch::NoGradGuard no_graph;
  for (Tensor& parameter : model->parameters()) parameter.copy_(numbers(parameter.sizes().vec(), phase += 1) * 0.5);
  return model;
}

Tensor float_numbers(double phase) { return numbers({kRows, kWidth}, phase).to(at::kFloat); }

LaunchOptions world_of(int ranks, int replicas) {
  return {.ranks = ranks, .replicas = replicas, .threads_per_rank = 1, .timeout = kPatience};
}

std::unique_ptr<torch::optim::Optimizer> adam(const std::vector<Tensor>& parameters) {
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
}

using Weights = std::map<std::string, Tensor>;
struct Trained {
  Weights weights;
  std::vector<double> losses;
};

/// Plain LibTorch: float32 masters, a model in `type` made from them before every update, gradients of microbatches
/// added up in float32.
Trained on_one_device(int layers, int steps, at::ScalarType type, double scale = 1) {
  torch::nn::Sequential model = float_layers(layers);
  std::vector<Tensor> masters;
  for (const Tensor& parameter : model->parameters()) {
    masters.push_back(parameter.detach().clone().set_requires_grad(true));
  }
  const auto optimizer = adam(masters);
  Trained trained;
  for (int step = 0; step < steps; ++step) {
    std::vector<Tensor> parameters = model->parameters();
    for (std::size_t i = 0; i < masters.size(); ++i) parameters[i].set_data(masters[i].detach().to(type));
    const Tensor x = float_numbers(step);
    double sum = 0;
    for (const Tensor& part : x.chunk(kMicrobatches)) {
      const Tensor loss = (model->forward(part.to(type)).to(at::kFloat) - part.sin()).pow(2).mean();
      loss.backward(at::full_like(loss.detach(), scale / kMicrobatches));
      sum += loss.item<double>() / kMicrobatches;
      for (std::size_t i = 0; i < masters.size(); ++i) {
        Tensor& total = masters[i].mutable_grad();
        const Tensor gradient = parameters[i].grad().to(at::kFloat);
        total = total.defined() ? total + gradient : gradient;
        parameters[i].mutable_grad().reset();
      }
    }
    for (const Tensor& master : masters) master.mutable_grad().div_(scale);
    optimizer->step();
    optimizer->zero_grad();
    trained.losses.push_back(sum);
  }
  std::size_t i = 0;
  for (const auto& parameter : model->named_parameters()) trained.weights.emplace(parameter.key(), masters[i++]);
  return trained;
}

/// The same in a pipeline; the masters, whole. Fails if they differ between replicas.
Trained in_pipeline(int ranks, int replicas, int steps, PipelineOptions options) {
  options.microbatches = kMicrobatches / replicas;
  options.loss = mean_square;
  options.broadcast_loss = true;
  Trained trained;
  std::mutex mutex;
  run_ranks(world_of(ranks, replicas), [&](World& world) {
    Pipeline pipeline(world, float_layers(4), options);
    const auto optimizer = adam(pipeline.parameters());
    pipeline.attach(*optimizer);
    for (const Tensor& parameter : pipeline.parameters()) EXPECT_EQ(parameter.scalar_type(), at::kFloat);
    std::vector<double> losses;
    for (int step = 0; step < steps; ++step) {
      const Tensor x = world.share_of(float_numbers(step));
      losses.push_back(pipeline.step({x}, {.target = x.sin()}).loss());
      if (pipeline.unscale_gradients()) optimizer->step();
      optimizer->zero_grad();
    }
    for (const auto& [name, weight] : pipeline.named_parameters()) {
      const Tensor whole = pipeline.masters() ? pipeline.masters()->whole_of(weight, weight).clone() : weight.detach();
      const std::lock_guard lock(mutex);
      trained.weights.emplace(name, whole);
      EXPECT_TRUE(at::equal(trained.weights.at(name), whole)) << name << " differs between replicas";
      trained.losses = losses;
    }
  });
  return trained;
}

void expect_equal(const Trained& got, const Trained& expected, double tolerance) {
  ASSERT_EQ(got.weights.size(), expected.weights.size());
  for (const auto& [name, weight] : expected.weights) {
    EXPECT_LE((got.weights.at(name) - weight).abs().max().item<double>(), tolerance) << name;
  }
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(got.losses[step], expected.losses[step], std::max(tolerance, 1e-7)) << "step " << step;
  }
}

TEST(Precision, EqualsOneDeviceBitForBit) {
  const Trained expected = on_one_device(4, 5, at::kBFloat16);
  const Trained in_float = on_one_device(4, 5, at::kFloat);
  EXPECT_FALSE(at::equal(expected.weights.at("0.weight"), in_float.weights.at("0.weight")));
  for (const char* schedule : {"1F1B", "ZB-H1"}) {
    for (const int ranks : {1, 2}) {
      for (const Recompute& recompute : {Recompute(), Recompute::stage(), Recompute::every(1)}) {
        SCOPED_TRACE(std::string(schedule) + " on " + std::to_string(ranks));
        const Trained got = in_pipeline(
            ranks, 1, 5, {.schedule = schedule, .precision = {.compute = at::kBFloat16}, .recompute = recompute});
        expect_equal(got, expected, 0);
      }
    }
  }
}

TEST(Precision, GivesTheSameMastersWithAnySharding) {
  const std::vector<Shard> kinds = {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters};
  struct Choice {
    int ranks;
    at::ScalarType type;
    std::optional<at::ScalarType> reduce;
  };
  for (const Choice& choice :
       {Choice{1, at::kBFloat16, at::kBFloat16}, {2, at::kBFloat16, std::nullopt}, {1, at::kHalf, std::nullopt}}) {
    std::optional<Trained> first;
    for (const Shard shard : kinds) {
      const Trained got = in_pipeline(choice.ranks, 3, 50,
                                      {.shard = shard, .precision = {.compute = choice.type, .reduce = choice.reduce}});
      if (!first) first = got;
      SCOPED_TRACE(std::string(c10::toString(choice.type)) + ", kind " + std::to_string(static_cast<int>(shard)));
      expect_equal(got, *first, 0);
    }
    EXPECT_LT(first->losses.back(), 0.8 * first->losses.front());
  }
}

TEST(Precision, OfHalfScalesTheLosses) {
  const Trained expected = on_one_device(4, 5, at::kHalf, 1024);
  const Precision precision = {.compute = at::kHalf, .scaling = LossScaling{.initial = 1024}};
  for (const int ranks : {1, 2}) expect_equal(in_pipeline(ranks, 1, 5, {.precision = precision}), expected, 0);
}

Tensor all_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> flat;
  for (const Tensor& parameter : parameters) flat.push_back(parameter.detach().flatten());
  return at::cat(flat);
}

TEST(Precision, OverflowOnOneRankSkipsTheUpdateOnAll) {
  for (const auto& [ranks, replicas] : {std::pair(3, 1), {1, 2}, {2, 2}}) {
    for (const Shard shard : {Shard::kNone, Shard::kParameters}) {
      if (shard != Shard::kNone && replicas == 1) continue;
      run_ranks(world_of(ranks, replicas), [&](World& world) {
        Pipeline pipeline(
            world, float_layers(2 * world.size()),
            {.microbatches = 2,
             .loss = mean_square,
             .shard = shard,
             .precision = {.compute = at::kHalf, .scaling = LossScaling{.initial = 8, .growth_interval = 2}}});
        torch::optim::SGD optimizer(pipeline.parameters(), 0.1);
        pipeline.attach(optimizer);
        const Tensor x = world.share_of(float_numbers(0));
        std::vector<bool> updated;
        for (int step = 0; step < 6; ++step) {
          pipeline.step({x}, {.target = x.sin()});
          const bool is_last = world.is_last() && world.replica() + 1 == world.replicas();
          if (step == 2 && is_last) pipeline.parameters().back().mutable_grad().view(-1)[0] = INFINITY;
          if (step == 4 && world.world_rank().value == 0) pipeline.parameters()[0].mutable_grad().fill_(NAN);
          const Tensor before = all_of(pipeline.parameters());
          updated.push_back(pipeline.unscale_gradients());
          if (updated.back()) optimizer.step();
          EXPECT_EQ(at::equal(before, all_of(pipeline.parameters())), !updated.back());
          optimizer.zero_grad();
        }
        EXPECT_EQ(updated, (std::vector<bool>{true, true, false, true, false, true})) << world.name();
        // 8, then 16 after two updates, 8 after an overflow, and 4 after the next.
        EXPECT_EQ(pipeline.loss_scaling().scale, 4) << world.name();
      });
    }
  }
}

TEST(Precision, OfHalfRefusesGradientsThatWereNotUnscaled) {
  run_ranks(world_of(2, 1), [&](World& world) {
    Pipeline pipeline(world, float_layers(2),
                      {.microbatches = 2, .loss = mean_square, .precision = {.autocast = at::kHalf}, .accumulate = 2});
    const Tensor x = float_numbers(0);
    const auto step = [&] { pipeline.step({x}, {.target = x.sin()}); };
    step();
    step();
    EXPECT_THAT(message_of([&] { (void)pipeline.gradient_norm(); }), HasSubstr("unscale_gradients()"));
    EXPECT_THAT(message_of([&] { pipeline.clip_gradient_values(1); }), HasSubstr("unscale_gradients()"));
    EXPECT_THAT(message_of(step), HasSubstr("unscale_gradients()"));
    pipeline.set_steps(2);
    step();
    step();
    EXPECT_TRUE(pipeline.unscale_gradients());
    EXPECT_GT(pipeline.gradient_norm().item<double>(), 0);
    EXPECT_NO_THROW(step());
  });
}

TEST(Precision, AutocastEqualsLibTorchs) {
  torch::nn::Sequential model = float_layers(4);
  const Tensor x = float_numbers(0);
  at::autocast::set_autocast_cache_enabled(false);
  for (const Tensor& part : x.chunk(kMicrobatches)) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const Tensor loss = (model->forward(part) - part.sin()).pow(2).mean();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    (loss / kMicrobatches).backward();
  }
  at::autocast::set_autocast_cache_enabled(true);
  for (const Recompute& recompute : {Recompute(), Recompute::stage()}) {
    std::mutex mutex;
    run_ranks(world_of(2, 1), [&](World& world) {
      Pipeline pipeline(world, float_layers(4),
                        {.schedule = "ZB-H1",
                         .microbatches = kMicrobatches,
                         .loss = mean_square,
                         .precision = {.autocast = at::kBFloat16},
                         .recompute = recompute});
      pipeline.step({x}, {.target = x.sin()});
      EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
      const std::lock_guard lock(mutex);
      for (const auto& [name, parameter] : pipeline.named_parameters()) {
        EXPECT_TRUE(at::equal(parameter.grad(), model->named_parameters()[name].grad())) << name;
      }
      EXPECT_FALSE(pipeline.masters());
    });
  }
}

TEST(Precision, KeepsMastersOfAModelThatIsStoredInSixteenBits) {
  run_ranks(world_of(2, 2), [&](World& world) {
    torch::nn::Sequential model = float_layers(4);
    model->to(at::kBFloat16);
    Pipeline pipeline(world, model, {.microbatches = 1, .loss = mean_square, .precision = {.parameters = at::kFloat}});
    torch::optim::SGD optimizer(pipeline.parameters(), 1e-5);
    pipeline.attach(optimizer);
    const Tensor before = pipeline.parameters()[0].detach().clone();
    const Tensor x = world.share_of(float_numbers(0)).to(at::kBFloat16);
    pipeline.step({x}, {.target = x.sin()});
    optimizer.step();
    const Tensor after = pipeline.parameters()[0].detach();
    EXPECT_EQ(after.scalar_type(), at::kFloat);
    EXPECT_FALSE(at::equal(before, after));  // too small a change for bfloat16
    EXPECT_TRUE(at::equal(before.to(at::kBFloat16), after.to(at::kBFloat16)));
  });
}

/// Two layers; with `tied`, they have one weight.
struct TwoLayers {
  explicit TwoLayers(bool tied) {
    const torch::NoGradGuard no_graph;
    double phase = 0;
    for (torch::nn::Linear* layer : {&first, &second}) {
      (*layer)->weight.copy_(numbers({kWidth, kWidth}, 1) * 0.5);
      (*layer)->bias.copy_(numbers({kWidth}, phase += 1));
    }
    if (tied) second->weight = first->weight;
  }
  torch::nn::Linear first{kWidth, kWidth};
  torch::nn::Linear second{kWidth, kWidth};
};

TEST(Precision, TiesAreSummedInTheMastersType) {
  TwoLayers alone(/*tied=*/true);
  for (const Tensor& parameter : {alone.first->weight, alone.first->bias, alone.second->bias}) {
    parameter.set_data(parameter.to(at::kBFloat16));
  }
  const Tensor x = float_numbers(0);
  Tensor expected = at::zeros({kWidth, kWidth});
  for (const Tensor& own : x.chunk(4)) {
    const Tensor output = alone.second(alone.first(own.to(at::kBFloat16)).tanh()).to(at::kFloat);
    ((output - own.sin()).pow(2).mean() / 4).backward();
    expected += alone.first->weight.grad();
    alone.first->weight.mutable_grad().reset();
  }
  for (const int replicas : {1, 2}) {
    for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kParameters}) {
      if (shard != Shard::kNone && replicas == 1) continue;
      run_ranks(world_of(2, replicas), [&](World& world) {
        TwoLayers layers(/*tied=*/false);
        const bool is_first = world.rank().value == 0;
        torch::nn::Linear& layer = is_first ? layers.first : layers.second;
        const Stage stage(world.rank().value,
                          [&layer, is_first](const StageCall& call) {
                            const Tensor output = layer(call.tensor(0));
                            return Value(is_first ? output.tanh() : output);
                          },
                          {{"tied", layer->weight}, {std::to_string(world.rank().value) + ".bias", layer->bias}});
        Pipeline pipeline(world, {stage},
                          {.microbatches = 4 / replicas,
                           .loss = mean_square,
                           .ties = {{"tied", {StageId(0), StageId(1)}}},
                           .shard = shard,
                           .precision = {.compute = at::kBFloat16}});
        pipeline.attach(torch::optim::SGD(pipeline.parameters(), 0.1));
        const Tensor part = world.share_of(x);
        pipeline.step({part}, {.target = part.sin()});
        const Tensor master = pipeline.named_parameters().front().second;
        const Tensor whole = pipeline.masters()->whole_of(master, master.grad());
        // One device adds the two uses of the weight in bfloat16, a pipeline in float32.
        EXPECT_LT((whole - expected).abs().max().item<double>(), 4e-3);
        EXPECT_GT(expected.abs().max().item<double>(), 0.05);
      });
    }
  }
}

TEST(Precision, LeavesSomeParametersAsTheyAre) {
  run_ranks(world_of(2, 1), [&](World& world) {
    Pipeline pipeline(
        world, float_layers(4),
        {.schedule = "1F1B",
         .microbatches = 1,
         .loss = [](const Tensor& output, const Tensor& target) { return (output - target).pow(2).mean(); },
         .precision = {.compute = at::kBFloat16, .keep = {"*.bias"}}});
    for (const Stage& stage : pipeline.stages()) {
      for (const auto& [name, parameter] : stage.parameters()) {
        EXPECT_EQ(parameter.scalar_type(), name.ends_with("bias") ? at::kFloat : at::kBFloat16) << name;
      }
    }
    EXPECT_THAT(message_of([&] {
                  Pipeline other(world, float_layers(4),
                                 {.microbatches = 1,
                                  .loss = mean_square,
                                  .precision = {.compute = at::kBFloat16, .keep = {"*.bias", "norm.*"}}});
                }),
                HasSubstr("precision.keep 'norm.*' fits no parameter"));
  });
}

TEST(Precision, CheckpointsHoldTheMasters) {
  const std::string path = (std::filesystem::temp_directory_path() / "stagecraft-precision-test").string();
  Sayings sayings;
  std::map<std::string, Tensor> saved;
  double scale = 0;
  std::mutex mutex;
  run_ranks(world_of(2, 2), [&](World& world) {
    Pipeline pipeline(
        world, float_layers(4),
        {.microbatches = 1,
         .loss = mean_square,
         .shard = Shard::kParameters,
         .precision = {.compute = at::kHalf, .scaling = LossScaling{.initial = 64, .growth_interval = 1}}});
    const auto optimizer = adam(pipeline.parameters());
    pipeline.attach(*optimizer);
    const Tensor x = world.share_of(float_numbers(0));
    for (int step = 0; step < 3; ++step) {
      pipeline.step({x}, {.target = x.sin()});
      if (pipeline.unscale_gradients()) optimizer->step();
      optimizer->zero_grad();
    }
    save_checkpoint(world, pipeline, path, {.optimizer = optimizer.get()});
    for (const auto& [name, master] : pipeline.named_parameters()) {
      const Tensor whole = pipeline.masters()->whole_of(master, master);
      const std::lock_guard lock(mutex);
      saved[name] = whole;
      scale = pipeline.loss_scaling().scale;
    }
  });
  EXPECT_EQ(scale, 512);
  for (const auto& precision : {Precision(), Precision{.compute = at::kBFloat16}, Precision{.compute = at::kHalf}}) {
    run_ranks(world_of(1, 1), [&](World& world) {
      Pipeline pipeline(world, float_layers(4), {.microbatches = 1, .loss = mean_square, .precision = precision});
      const auto optimizer = adam(pipeline.parameters());
      pipeline.attach(*optimizer);
      load_checkpoint(world, pipeline, path, {.optimizer = optimizer.get()});
      for (const auto& [name, master] : pipeline.named_parameters()) {
        EXPECT_TRUE(at::equal(master, saved.at(name))) << name;
      }
      EXPECT_EQ(pipeline.loss_scaling().scale, precision.is_half() ? 512 : 1);
    });
  }
  std::filesystem::remove(path);
}

TEST(Precision, CheckpointsInTheBackgroundHoldWholeMasters) {
  const ScratchFolder scratch;
  run_ranks(world_of(2, 2), [&](World& world) {
    Pipeline pipeline(world, float_layers(4),
                      {.microbatches = 1, .loss = mean_square, .precision = {.compute = at::kBFloat16}});
    const auto optimizer = adam(pipeline.parameters());
    pipeline.attach(*optimizer);
    Checkpoints checkpoints(world, {.folder = scratch.path("checkpoints")});
    const Tensor x = world.share_of(float_numbers(0));
    const auto update = [&] {
      pipeline.step({x}, {.target = x.sin()});
      optimizer->step();
      optimizer->zero_grad();
    };
    update();
    Weights saved;
    for (const auto& [name, master] : pipeline.named_parameters()) saved[name] = master.detach().clone();
    checkpoints.save(pipeline, {.optimizer = optimizer.get(), .step = 1});
    update();  // while the file is written
    for (const auto& [name, master] : pipeline.named_parameters()) EXPECT_FALSE(at::equal(master, saved[name])) << name;
    EXPECT_EQ(checkpoints.load_latest(pipeline, {.optimizer = optimizer.get()}), 1);
    for (const auto& [name, master] : pipeline.named_parameters()) EXPECT_TRUE(at::equal(master, saved[name])) << name;
  });
}

TEST(Precision, RefusesWhatDoesNotGoTogether) {
  run_ranks(world_of(1, 1), [&](World& world) {
    const auto why = [&](const Precision& precision) {
      return message_of([&] {
        Pipeline pipeline(world, float_layers(1), {.microbatches = 1, .loss = mean_square, .precision = precision});
      });
    };
    EXPECT_THAT(why({.compute = at::kBFloat16, .scaling = LossScaling()}), HasSubstr("bfloat16 has the range"));
    EXPECT_THAT(why({.scaling = LossScaling()}), HasSubstr("is for float16"));
    EXPECT_THAT(why({.compute = at::kLong}), HasSubstr("compute is Long, which is not a floating-point type"));
    EXPECT_THAT(why({.compute = at::kHalf, .autocast = at::kHalf}), HasSubstr("give one of them"));
    EXPECT_THAT(why({.autocast = at::kDouble}), HasSubstr("at::kBFloat16 or at::kHalf"));
    EXPECT_THAT(why({.compute = at::kHalf, .scaling = LossScaling{.initial = 0}}), HasSubstr("positive"));
    EXPECT_THAT(why({.compute = at::kHalf, .scaling = LossScaling{.backoff = 2}}), HasSubstr("between 0 and 1"));
    Pipeline pipeline(world, float_layers(1),
                      {.microbatches = 1, .loss = mean_square, .precision = {.compute = at::kBFloat16}});
    const Tensor x = float_numbers(0);
    EXPECT_THAT(message_of([&] { pipeline.step({x}, {.target = x}); }), HasSubstr("call pipeline.attach(optimizer)"));
    torch::optim::LBFGS whole(pipeline.parameters());
    EXPECT_NO_THROW(pipeline.attach(whole));  // masters are whole, so it need not work element by element
    EXPECT_NO_THROW(pipeline.step({x}, {.target = x}));
    EXPECT_EQ(pipeline.eval({x}).output.tensor().scalar_type(), at::kFloat);
  });
  Sayings sayings;
  run_ranks(world_of(2, 1), [&](World& world) {
    Precision precision;
    if (world.rank().value == 1) precision.compute = at::kBFloat16;
    sayings.add(world.rank(), message_of([&] {
                  Pipeline pipeline(world, float_layers(2),
                                    {.microbatches = 1, .loss = mean_square, .precision = precision});
                }));
  });
  for (const int rank : {0, 1}) EXPECT_THAT(sayings.of(rank), HasSubstr("has precision 'compute BFloat16"));
}

}  // namespace
}  // namespace stagecraft
