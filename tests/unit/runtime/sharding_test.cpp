// Sharding over replicas: the weights of training without it, less memory, and what is refused.

#include "pipeline_testing.h"
#include "stagecraft/data_parallel/masters.h"

namespace stagecraft {
namespace {

using pipeline_testing::HasSubstr;
using pipeline_testing::mean_square;
using pipeline_testing::numbers;
using pipeline_testing::Sayings;
using torch::Tensor;

torch::nn::Sequential sharded_layers(int count, std::int64_t width = 5) {
  torch::nn::Sequential model;
  for (int i = 0; i < count; ++i) {
    model->push_back(torch::nn::Linear(width, width));
    model->push_back(torch::nn::Tanh());
  }
  model->to(at::kDouble);
  double phase = 0;
  const torch::NoGradGuard no_graph;
  for (Tensor& parameter : model->parameters()) parameter.copy_(numbers(parameter.sizes().vec(), phase += 1) * 0.5);
  return model;
}

LaunchOptions with_replicas(int ranks, int count) {
  return {.ranks = ranks, .replicas = count, .threads_per_rank = 1, .timeout = kPatience};
}

const std::vector<Shard> kKinds = {Shard::kOptimizer, Shard::kGradients, Shard::kParameters};

using Weights = std::map<std::string, Tensor>;

/// All weights after some updates.
template <typename MakeOptimizer>
Weights trained(int ranks, int count, const PipelineOptions& given, const MakeOptimizer& make_optimizer) {
  Weights all;
  std::mutex mutex;
  run_ranks(with_replicas(ranks, count), [&](World& world) {
    Pipeline pipeline(world, sharded_layers(2 * ranks), given);
    const auto optimizer = make_optimizer(pipeline.parameters());
    pipeline.attach(*optimizer);
    for (int step = 0; step < 4 * given.accumulate; ++step) {
      const Tensor x = world.share_of(numbers({13, 5}, step));
      pipeline.step({x}, {.target = x.sin()});
      if ((step + 1) % given.accumulate != 0) continue;
      optimizer->step();
      optimizer->zero_grad();
      pipeline.eval({x}, {.target = x});
    }
    for (const auto& [name, weight] : pipeline.named_parameters()) {
      const Tensor whole = pipeline.masters() ? pipeline.masters()->whole_of(weight, weight) : weight.detach();
      const std::lock_guard lock(mutex);
      all.emplace(name, whole);
      EXPECT_TRUE(at::equal(all.at(name), whole)) << name << " differs between replicas";
    }
  });
  return all;
}

TEST(Sharding, OfAnythingGivesTheWeightsOfNone) {
  using Optimizer = std::unique_ptr<torch::optim::Optimizer>;
  const std::vector<std::pair<std::string, std::function<Optimizer(std::vector<Tensor>)>>> optimizers = {
      {"AdamW",
       [](std::vector<Tensor> all) -> Optimizer {
         return std::make_unique<torch::optim::AdamW>(all, torch::optim::AdamWOptions(0.05));
       }},
      {"SGD",
       [](std::vector<Tensor> all) -> Optimizer {
         return std::make_unique<torch::optim::SGD>(all, torch::optim::SGDOptions(0.1).momentum(0.9));
       }},
      {"RMSprop", [](std::vector<Tensor> all) -> Optimizer {
         return std::make_unique<torch::optim::RMSprop>(all, torch::optim::RMSpropOptions(0.01));
       }}};
  for (const auto& [name, make_optimizer] : optimizers) {
    for (const auto& [ranks, count] : {std::pair(1, 2), {2, 2}, {1, 3}, {2, 3}}) {
      for (const int accumulate : {1, 3}) {
        PipelineOptions options = {
            .schedule = "1F1B", .microbatches = 2, .loss = mean_square, .bucket_bytes = 1000, .accumulate = accumulate};
        const Weights expected = trained(ranks, count, options, make_optimizer);
        for (const Shard shard : kKinds) {
          options.shard = shard;
          SCOPED_TRACE(name + ", " + std::to_string(ranks) + " ranks x " + std::to_string(count) + ", kind " +
                       std::to_string(static_cast<int>(shard)) + ", accumulate " + std::to_string(accumulate));
          const Weights got = trained(ranks, count, options, make_optimizer);
          ASSERT_EQ(got.size(), expected.size());
          for (const auto& [weight, tensor] : expected) {
            if (accumulate == 1) {
              EXPECT_TRUE(at::equal(got.at(weight), tensor)) << weight << " is not the same bit for bit";
            } else {
              pipeline_testing::expect_close(got.at(weight), tensor);
            }
          }
        }
      }
    }
  }
}

TEST(Sharding, OfParametersHoldsOnlyTheStagesInUse) {
  // Four stages on one rank, at most one of which is whole at a time.
  run_ranks(with_replicas(1, 2), [&](World& world) {
    Schedule schedule = make_schedule("LoopedBFS", {.ranks = 1, .stages_per_rank = 4, .microbatches = 2});
    unshard_reshard(schedule, 1);
    run_passes(schedule, "reduce_grad,send_recv");
    Pipeline pipeline(world, sharded_layers(4),
                      {.schedule = schedule, .loss = mean_square, .shard = Shard::kParameters});
    pipeline.attach(torch::optim::SGD(pipeline.parameters(), 0.1));
    int most = 0;
    const auto count = [&](const ActionContext& action) {
      action.run();
      int whole = 0;
      for (const Stage& stage : pipeline.stages()) {
        whole +=
            stage.parameters().front().second.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks() ? 1 : 0;
      }
      most = std::max(most, whole);
    };
    pipeline.on(ActionKind::kForward, count);
    pipeline.on(ActionKind::kBackward, count);
    const Tensor x = world.share_of(numbers({8, 5}, 0));
    pipeline.step({x}, {.target = x});
    EXPECT_EQ(most, 1);
    std::int64_t masters = 0;
    std::int64_t parameters = 0;
    for (const Tensor& master : pipeline.parameters()) {
      masters += master.numel();
      EXPECT_EQ(master.grad().numel(), master.numel());
    }
    for (const Stage& stage : pipeline.stages()) {
      for (const auto& [name, parameter] : stage.parameters()) {
        parameters += parameter.numel();
        EXPECT_FALSE(parameter.grad().defined()) << name;
        EXPECT_THAT(message_of([&own = parameter] { (void)own.sum().item<double>(); }), HasSubstr("meta"));
      }
    }
    EXPECT_LT(masters, parameters);
  });
}

TEST(Sharding, GivesModulesTheirWeightsWhenAskedTo) {
  for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
    run_ranks(with_replicas(2, 2), [&](World& world) {
      Pipeline pipeline(world, sharded_layers(4), {.microbatches = 2, .loss = mean_square, .shard = shard});
      torch::optim::SGD optimizer(pipeline.parameters(), 0.1);
      pipeline.attach(optimizer);
      const Tensor x = world.share_of(numbers({8, 5}, 0));
      for (int step = 0; step < 3; ++step) {
        pipeline.step({x}, {.target = x.sin()});
        optimizer.step();
        optimizer.zero_grad();
        pipeline.refresh_modules();
        const NamedTensors masters = pipeline.named_parameters();
        std::size_t i = 0;
        for (const auto& [name, parameter] : pipeline.stages().front().parameters()) {
          const Tensor& master = masters[i++].second;
          const Tensor whole = pipeline.masters() ? pipeline.masters()->whole_of(master, master) : master;
          EXPECT_TRUE(at::equal(parameter, whole)) << name << " in step " << step;
        }
      }
    });
  }
}

TEST(Sharding, IsRefusedWithoutReplicas) {
  run_ranks(with_replicas(1, 1), [&](World& world) {
    EXPECT_THAT(message_of([&] {
                  Pipeline pipeline(world, sharded_layers(1), {.microbatches = 1, .shard = Shard::kGradients});
                }),
                HasSubstr("there is only one"));
    EXPECT_THAT(message_of([&] { Pipeline pipeline(world, sharded_layers(1), {.microbatches = 1, .accumulate = 0}); }),
                HasSubstr("at least 1, got 0"));
  });
}

TEST(Sharding, OfDifferentKindsIsRefusedOnAllRanks) {
  Sayings sayings;
  run_ranks(with_replicas(1, 2), [&](World& world) {
    const Shard shard = world.replica() == 0 ? Shard::kGradients : Shard::kParameters;
    sayings.add(world.world_rank(), message_of([&] {
                  Pipeline pipeline(world, sharded_layers(1), {.microbatches = 1, .loss = mean_square, .shard = shard});
                }));
  });
  for (const int rank : {0, 1}) EXPECT_THAT(sayings.of(rank), HasSubstr("has shard 'parameters'"));
}

TEST(Sharding, ChecksTheOptimizer) {
  for (const Shard shard : kKinds) {
    run_ranks(with_replicas(1, 2), [&](World& world) {
      const torch::nn::Sequential model = sharded_layers(1);
      const torch::optim::SGD early(model->parameters(), 0.1);
      Pipeline pipeline(world, model, {.microbatches = 1, .loss = mean_square, .shard = shard});
      const Tensor x = world.share_of(numbers({4, 5}, 0));
      const auto step = [&] { pipeline.step({x}, {.target = x}); };
      EXPECT_THAT(message_of(step), HasSubstr("call pipeline.attach(optimizer)"));
      EXPECT_THAT(message_of([&] { pipeline.attach(early); }), HasSubstr("not one of pipeline.parameters()"));
      torch::optim::LBFGS flat(pipeline.parameters());
      EXPECT_THAT(message_of([&] { pipeline.attach(flat); }), HasSubstr("element by element"));
      EXPECT_THAT(message_of(step), HasSubstr("call pipeline.attach(optimizer)"));
      pipeline.attach(flat, /*is_element_wise=*/true);
      EXPECT_NO_THROW(step());
    });
  }
}

TEST(Sharding, KeepsTheNormOfTheGradients) {
  for (const auto& [ranks, count] : {std::pair(1, 2), {2, 2}, {2, 3}}) {
    std::vector<double> norms;
    for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
      std::mutex mutex;
      run_ranks(with_replicas(ranks, count), [&](World& world) {
        Pipeline pipeline(world, sharded_layers(2 * world.size()),
                          {.microbatches = 2, .loss = mean_square, .shard = shard});
        pipeline.attach(torch::optim::SGD(pipeline.parameters(), 0.1));
        const Tensor x = world.share_of(numbers({9, 5}, 0));
        pipeline.step({x}, {.target = x.sin()});
        const double norm = pipeline.clip_gradient_norm(1e-2).item<double>();
        EXPECT_NEAR(pipeline.gradient_norm().item<double>(), 1e-2, 1e-5);
        pipeline.clip_gradient_values(1e-4);
        for (const Tensor& parameter : pipeline.parameters()) {
          EXPECT_TRUE((parameter.grad().abs() <= 1e-4).all().item<bool>());
        }
        EXPECT_THAT(message_of([&] { pipeline.clip_gradient_norm(0); }), HasSubstr("positive number, got 0"));
        EXPECT_THAT(message_of([&] { pipeline.clip_gradient_values(-1); }), HasSubstr("positive number, got -1"));
        const std::lock_guard lock(mutex);
        norms.push_back(norm);
      });
    }
    for (const double norm : norms) EXPECT_NEAR(norm, norms.front(), 1e-12 * norms.front());
    EXPECT_GT(norms.front(), 1e-2);
  }
}

TEST(Sharding, GoesOnAfterAFailedStep) {
  for (const Shard shard : kKinds) {
    run_ranks(with_replicas(2, 2), [&](World& world) {
      bool fails = false;
      const torch::nn::Sequential model = sharded_layers(2);
      std::vector<Stage> stages = split(model, world, {.microbatches = 2});
      const Stage plain = stages.front();
      stages = {Stage(
          plain.index().value,
          [&](const StageCall& call) {
            if (fails && call.microbatch.value == 1 && world.world_rank().value == 3)
              throw std::runtime_error("on purpose");
            return plain.forward(call);
          },
          plain.parameters())};
      Pipeline pipeline(world, stages, {.microbatches = 2, .loss = mean_square, .shard = shard});
      pipeline.attach(torch::optim::SGD(pipeline.parameters(), 0.1));
      const Tensor x = world.share_of(numbers({8, 5}, 0));
      pipeline.step({x}, {.target = x.sin()});
      std::vector<Tensor> expected;
      for (const Tensor& master : pipeline.parameters()) {
        expected.push_back(master.grad().clone());
        master.mutable_grad().reset();
      }
      fails = true;
      EXPECT_ANY_THROW(pipeline.step({x}, {.target = x.sin()}));
      fails = false;
      for (const Tensor& master : pipeline.parameters()) master.mutable_grad().reset();
      pipeline.step({x}, {.target = x.sin()});
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::equal(pipeline.parameters()[i].grad(), expected[i]));
      }
    });
  }
}

}  // namespace
}  // namespace stagecraft
