// A pipeline with several replicas: what is averaged, when, and what happens if replicas differ.

#include <thread>

#include "pipeline_testing.h"
#include "stagecraft/transport/local.h"

namespace stagecraft {
namespace {

using namespace pipeline_testing;

LaunchOptions replicas(int count, int ranks = 1) {
  return {.ranks = ranks, .replicas = count, .threads_per_rank = 1, .timeout = kPatience};
}

at::Tensor weight(double seed) { return numbers({4, 4}, seed).set_requires_grad(true); }

Stage linear(int stage, const at::Tensor& weight, const std::string& name = "weight") {
  return {stage, [weight](const StageCall& call) { return Value(at::tanh(at::matmul(call.tensor(0), weight))); },
          NamedTensors{{name, weight}}};
}

at::Tensor gradient_on_one_device(const at::Tensor& x, const at::Tensor& y, LossScale scale = LossScale::kMean) {
  const at::Tensor w = weight(0);
  const at::Tensor squares = (at::tanh(at::matmul(x, w)) - y).pow(2);
  (scale == LossScale::kMean ? squares.mean() : squares.sum()).backward();
  return w.grad();
}

TEST(Replicas, NumberTheirRanksAmongThemselves) {
  std::mutex mutex;
  std::vector<std::string> names(6);
  run_ranks(replicas(3, 2), [&](World& world) {
    EXPECT_EQ(world.size(), 2);
    EXPECT_EQ(world.replicas(), 3);
    EXPECT_EQ(world.world_rank().value, world.rank().value * 3 + world.replica());
    const std::lock_guard lock(mutex);
    names[world.world_rank().index()] = world.name();
  });
  EXPECT_EQ(names[4], "rank 4 (rank 1 of replica 1)");
}

TEST(Replicas, MustDivideTheRanks) {
  LocalFabric fabric(1);
  EXPECT_THAT(message_of([&] { World(fabric.connect(RankId(0)), at::kCPU, std::chrono::seconds(1), 2); }),
              HasSubstr("1 ranks cannot be divided among 2 replicas"));
  EXPECT_THAT(message_of([&] { run_ranks({.ranks = 2, .replicas = 0}, [](World&) {}); }), HasSubstr("2 and 0"));
}

TEST(Replicas, SharesMayDifferAndGradientsAreThoseOfTheWholeBatch) {
  const at::Tensor x = numbers({7, 4}, 1), y = numbers({7, 4}, 2);
  for (const LossScale scale : {LossScale::kMean, LossScale::kSum}) {
    const at::Tensor expected = gradient_on_one_device(x, y, scale);
    run_ranks(replicas(3), [&](World& world) {
      const at::Tensor w = weight(world.replica());  // replica 0's counts
      Pipeline pipeline(world, {linear(0, w)},
                        {.schedule = "GPipe",
                         .microbatches = 2,
                         .loss =
                             [&](const Value& output, const Value& target, const ValueDict&) {
                               const at::Tensor squares = (output.tensor() - target.tensor()).pow(2);
                               return scale == LossScale::kMean ? squares.mean() : squares.sum();
                             },
                         .loss_scale = scale});
      pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});
      expect_close(w.grad(), expected);
      pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});  // adds to what is there
      expect_close(w.grad(), 2 * expected);
    });
  }
}

TEST(Replicas, BroadcastLossesAreThoseOfAllReplicas) {
  const at::Tensor x = numbers({5, 4}, 1), y = numbers({5, 4}, 2);
  const double expected = (at::tanh(at::matmul(x, weight(0))) - y).pow(2).mean().item<double>();
  run_ranks(replicas(2, 2), [&](World& world) {
    const at::Tensor w = world.is_first() ? weight(0) : at::empty({0});
    std::vector<Stage> stages;
    if (world.is_first()) {
      stages.push_back(linear(0, w));
    } else {
      stages.emplace_back(
          1, [](const StageCall& call) { return Value(call.tensor(0)); }, NamedTensors{});
    }
    Pipeline pipeline(world, std::move(stages), {.microbatches = 2, .loss = mean_square, .broadcast_loss = true});
    const StepResult trained = pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});
    EXPECT_EQ(trained.losses.size(), 4U);
    EXPECT_NEAR(trained.loss(), expected, 1e-14);
    EXPECT_NEAR(pipeline.eval({world.share_of(x)}, {.target = world.share_of(y)}).loss(), expected, 1e-14);
  });
}

TEST(Replicas, StayTheSameBitForBitOverManySteps) {
  std::mutex mutex;
  std::vector<at::Tensor> weights(3);
  run_ranks(replicas(3), [&](World& world) {
    const at::Tensor w = weight(world.replica());
    Pipeline pipeline(world, {linear(0, w)}, {.microbatches = 2, .loss = mean_square, .bucket_bytes = 40});
    torch::optim::AdamW optimizer({w}, torch::optim::AdamWOptions(0.1));
    for (int step = 0; step < 10; ++step) {
      const at::Tensor x = numbers({9, 4}, step), y = numbers({9, 4}, -step);
      pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});
      optimizer.step();
      optimizer.zero_grad();
    }
    const std::lock_guard lock(mutex);
    weights[static_cast<std::size_t>(world.replica())] = w.detach();
  });
  EXPECT_FALSE(at::equal(weights[0], weight(0)));
  EXPECT_TRUE(at::equal(weights[0], weights[1]));
  EXPECT_TRUE(at::equal(weights[0], weights[2]));
}

TEST(Replicas, AParameterUsedByOneOnlyIsAveragedAndOneUsedByNoneStaysWithout) {
  run_ranks(replicas(2), [](World& world) {
    const at::Tensor always = weight(0), sometimes = weight(1), never = weight(2);
    const bool uses = world.replica() == 1;
    Stage stage(
        0,
        [=](const StageCall& call) {
          const at::Tensor x = at::matmul(call.tensor(0), always);
          return Value(uses ? at::matmul(x, sometimes) : x);
        },
        NamedTensors{{"always", always}, {"sometimes", sometimes}, {"never", never}});
    Pipeline pipeline(world, {std::move(stage)}, {.microbatches = 1, .loss = mean_square});
    const at::Tensor x = numbers({2, 4}, 5), y = numbers({2, 4}, 6);
    pipeline.step({x}, {.target = y});
    const at::Tensor a = weight(0), b = weight(1);
    ((at::matmul(at::matmul(x, a), b) - y).pow(2).mean() / 2 + (at::matmul(x, a) - y).pow(2).mean() / 2).backward();
    expect_close(always.grad(), a.grad());
    expect_close(sometimes.grad(), b.grad());
    EXPECT_FALSE(never.grad().defined());
  });
}

TEST(Replicas, AParameterOfTwoStagesIsAveragedOnce) {
  const at::Tensor x = numbers({4, 4}, 1), y = numbers({4, 4}, 2);
  const at::Tensor one = weight(0);
  (at::tanh(at::matmul(at::tanh(at::matmul(x, one)), one)) - y).pow(2).mean().backward();
  for (const std::string schedule : {"Interleaved1F1B", "InterleavedZeroBubble"}) {
    run_ranks(replicas(2), [&](World& world) {
      const at::Tensor w = weight(0);
      Pipeline pipeline(world, {linear(0, w), linear(1, w)},
                        {.schedule = schedule, .microbatches = 2, .loss = mean_square});
      pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});
      expect_close(w.grad(), one.grad());
    });
  }
}

TEST(Replicas, RunningStatisticsAreThoseOfReplicaZero) {
  std::mutex mutex;
  std::vector<at::Tensor> means(2), counts(2);
  at::Tensor alone;
  const auto train = [](World& world, const at::Tensor& x) {
    torch::nn::BatchNorm1d norm(4);
    norm->to(at::kDouble);
    Pipeline pipeline(world, {make_stage(0, norm)}, {.microbatches = 2, .loss = mean_square});
    for (int step = 0; step < 3; ++step) pipeline.step({x * (step + 1)}, {.target = x});
    return norm;
  };
  const at::Tensor x = numbers({8, 4}, 3);
  run_ranks(replicas(2), [&](World& world) {
    const auto norm = train(world, world.share_of(x));
    const std::lock_guard lock(mutex);
    means[static_cast<std::size_t>(world.replica())] = norm->running_mean;
    counts[static_cast<std::size_t>(world.replica())] = norm->num_batches_tracked;
  });
  run_ranks(replicas(1), [&](World& world) { alone = train(world, x.narrow(0, 0, 4))->running_mean; });
  EXPECT_TRUE(at::equal(means[0], means[1]));
  EXPECT_TRUE(at::equal(means[0], alone));
  EXPECT_EQ(counts[1].item<int>(), 6);
}

TEST(Replicas, AreAveragedAlsoWhenTheScheduleDoesNotSayWhen) {
  const at::Tensor x = numbers({4, 4}, 1), y = numbers({4, 4}, 2);
  const at::Tensor expected = gradient_on_one_device(x, y);
  run_ranks(replicas(2), [&](World& world) {
    const at::Tensor w = weight(0);
    Pipeline pipeline(world, {linear(0, w)}, {.microbatches = 2, .loss = mean_square, .passes = "send_recv"});
    EXPECT_EQ(std::count_if(pipeline.schedule().rows[0].begin(), pipeline.schedule().rows[0].end(),
                            [](const Action& action) { return action.kind() == ActionKind::kReduceGrad; }),
              0);
    pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});
    expect_close(w.grad(), expected);
  });
}

TEST(Replicas, AHandlerMayPutAveragingOffToALaterStep) {
  const at::Tensor x = numbers({4, 4}, 1), y = numbers({4, 4}, 2);
  const at::Tensor expected = gradient_on_one_device(x, y);
  run_ranks(replicas(2), [&](World& world) {
    const at::Tensor w = weight(0);
    Pipeline pipeline(world, {linear(0, w)}, {.microbatches = 2, .loss = mean_square});
    pipeline.record_timeline(true);
    bool is_last = false;
    pipeline.on(ActionKind::kReduceGrad, [&](const ActionContext& action) {
      if (is_last) action.run();
    });
    pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});
    EXPECT_GT((w.grad() - expected).abs().max().item<double>(), 1e-3) << "it is not averaged yet";
    is_last = true;
    pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});
    expect_close(w.grad(), 2 * expected);
    is_last = false;
    pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});
    EXPECT_TRUE(std::none_of(pipeline.timeline().begin(), pipeline.timeline().end(),
                             [](const Span& span) { return span.beside; }));
  });
}

TEST(Replicas, TiedParametersAddUpOverStepsBeforeTheyAreAveraged) {
  // Both stages share one weight; the gradients of the first two steps are averaged only in the third.
  const auto batch = [](int step) { return std::pair(numbers({6, 4}, step), numbers({6, 4}, step + 0.5)); };
  const at::Tensor alone = weight(0);
  for (int step = 0; step < 3; ++step) {
    const auto [x, y] = batch(step);
    (at::tanh(at::matmul(at::tanh(at::matmul(x, alone)), alone)) - y).pow(2).mean().backward();
  }
  for (const char* schedule : {"1F1B", "ZB-H1"}) {
    std::mutex mutex;
    std::vector<at::Tensor> gradients;
    run_ranks(replicas(2, 2), [&](World& world) {
      const at::Tensor w = weight(world.replica());
      Pipeline pipeline(world, {linear(world.rank().value, w)},
                        {.schedule = schedule,
                         .microbatches = 2,
                         .loss = mean_square,
                         .ties = {{"weight", {StageId(0), StageId(1)}}}});
      bool reduces = false;
      pipeline.on(ActionKind::kReduceGrad, [&](const ActionContext& action) {
        if (reduces) action.run();
      });
      for (int step = 0; step < 3; ++step) {
        reduces = step == 2;
        const auto [x, y] = batch(step);
        pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});
      }
      expect_close(w.grad(), alone.grad());
      const std::lock_guard lock(mutex);
      gradients.push_back(w.grad());
    });
    for (const at::Tensor& gradient : gradients) EXPECT_TRUE(gradient.equal(gradients.front()));
  }
}

TEST(Replicas, RanksThatCountThemDifferentlyAreRefused) {
  LocalFabric fabric(2);
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      World world(fabric.connect(RankId(r)), at::kCPU, kPatience, r + 1);
      const at::Tensor w = weight(0);
      said[static_cast<std::size_t>(r)] = message_of([&] { Pipeline(world, {linear(0, w)}, {.microbatches = 1}); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : said) EXPECT_THAT(text, HasSubstr("start all ranks with the same number"));
}

TEST(Replicas, AParameterThatThawsLaterIsAveragedToo) {
  const at::Tensor x = numbers({4, 4}, 1), y = numbers({4, 4}, 2);
  run_ranks(replicas(2), [&](World& world) {
    const at::Tensor w = weight(0);
    at::Tensor bias = at::zeros({4}, at::kDouble);
    Stage stage(
        0, [=](const StageCall& call) { return Value(at::matmul(call.tensor(0), w) + bias); },
        NamedTensors{{"weight", w}, {"bias", bias}});
    Pipeline pipeline(world, {std::move(stage)}, {.microbatches = 1, .loss = mean_square});
    pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});
    bias.requires_grad_(true);
    pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});
    const at::Tensor one = at::zeros({4}, at::kDouble).requires_grad_(true);
    (at::matmul(x, w.detach()) + one - y).pow(2).mean().backward();
    expect_close(bias.grad(), one.grad());
  });
}

TEST(Replicas, AFailureInOneIsAnErrorOnAllAndTheNextStepWorks) {
  const at::Tensor x = numbers({4, 4}, 1), y = numbers({4, 4}, 2);
  const at::Tensor expected = gradient_on_one_device(x, y);
  run_ranks(replicas(2, 2), [&](World& world) {
    const at::Tensor w = weight(0);
    bool breaks = world.is_last() && world.replica() == 1;
    std::vector<Stage> stages;
    if (world.is_first()) {
      stages.push_back(linear(0, w));
    } else {
      stages.emplace_back(
          1,
          [&breaks](const StageCall& call) {
            if (breaks && call.microbatch.value == 1) throw std::runtime_error("out of luck");
            return Value(call.tensor(0));
          },
          NamedTensors{});
    }
    Pipeline pipeline(world, std::move(stages), {.microbatches = 2, .loss = mean_square});
    for (int round = 0; round < 3; ++round) {
      const bool is_culprit = breaks;
      const std::string message =
          message_of([&] { pipeline.step({world.share_of(x)}, {.target = world.share_of(y)}); });
      EXPECT_THAT(message, HasSubstr("rank 3 (rank 1 of replica 1)"));
      EXPECT_THAT(message, HasSubstr("out of luck"));
      breaks = false;
      w.mutable_grad() = at::Tensor();
      pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});
      if (world.is_first()) expect_close(w.grad(), expected);
      breaks = is_culprit;
    }
  });
}

TEST(Replicas, ARankThatHasEndedItsProgramKeepsNobodyWaiting) {
  for (int missing = 0; missing < 6; ++missing) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT(message_of([&] {
                  run_ranks(replicas(2, 3), [&](World& world) {
                    Pipeline pipeline(world, {linear(world.rank().value, weight(0))},
                                      {.microbatches = 2, .loss = mean_square});
                    const at::Tensor x = numbers({4, 4}, 1);
                    for (int step = 0; step < 3; ++step) {
                      if (step == 1 && world.world_rank().value == missing) return;
                      pipeline.step({x}, {.target = x});
                    }
                  });
                }),
                HasSubstr("rank " + std::to_string(missing) + " has ended its program"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  }
}

TEST(Replicas, OfDifferentModelsAreRefused) {
  const std::string message = message_of([] {
    run_ranks(replicas(2), [](World& world) {
      const at::Tensor w = numbers({4, world.replica() == 0 ? 4 : 3}, 0).set_requires_grad(true);
      Pipeline(world, {linear(0, w)}, {.microbatches = 1, .loss = mean_square});
    });
  });
  EXPECT_THAT(message, HasSubstr("rank 1 has parameters of stage 0 '1 parameters, 0 buffers, 12 numbers"));
}

TEST(Replicas, ASparseGradientIsRefused) {
  const std::string message = message_of([] {
    run_ranks(replicas(2), [](World& world) {
      torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
      Stage stage(
          0, [embedding](const StageCall& call) mutable { return Value(embedding->forward(call.tensor(0))); },
          NamedTensors{{"embedding.weight", embedding->weight}});
      Pipeline pipeline(world, {std::move(stage)}, {.microbatches = 1, .loss = mean_square});
      pipeline.step({at::arange(4)}, {.target = at::zeros({4, 4})});
    });
  });
  EXPECT_THAT(message, HasSubstr("the gradient of embedding.weight is sparse"));
  EXPECT_THAT(message, HasSubstr("stage 0"));
}

TEST(Replicas, ABucketHasASize) {
  EXPECT_THAT(message_of([] {
                run_ranks(replicas(1), [](World& world) {
                  Pipeline(world, {linear(0, weight(0))}, {.microbatches = 1, .loss = mean_square, .bucket_bytes = 0});
                });
              }),
              HasSubstr("bucket_bytes is at least 1, got 0"));
}

TEST(Replicas, TheTimelineSaysWhenGradientsWereAveragedAndWhoWaitedForThem) {
  run_ranks(replicas(2), [](World& world) {
    Pipeline pipeline(world, {linear(0, weight(0)), linear(1, weight(1))},
                      {.schedule = "Interleaved1F1B", .microbatches = 2, .loss = mean_square});
    pipeline.record_timeline(true);
    for (int step = 0; step < 2; ++step) {
      pipeline.step({numbers({4, 4}, 1)}, {.target = numbers({4, 4}, 2)});
      std::vector<Span> beside;
      for (const Span& span : pipeline.timeline()) {
        if (span.beside) beside.push_back(span);
      }
      ASSERT_EQ(beside.size(), 2U);
      EXPECT_EQ(beside[0].action.stage(), StageId(1));  // complete first
      for (const Span& span : beside) {
        EXPECT_EQ(span.action.kind(), ActionKind::kReduceGrad);
        EXPECT_EQ(span.bytes, 16 * 8);
        EXPECT_GT(span.end, span.start);
        EXPECT_LE(span.waited, span.end - span.start);
      }
    }
  });
}

}  // namespace
}  // namespace stagecraft
