// What a user can ask of a pipeline.

#include <array>
#include <atomic>

#include "pipeline_testing.h"

namespace stagecraft {
namespace {

using namespace pipeline_testing;

TEST(Pipeline, LossesAreByMicrobatchWhateverTheOrderOfExecution) {
  run_ranks(quick(1), [](World& world) {
    // The last stage's forwards out of order.
    Pipeline pipeline(world, {make_stage(0, layer())},
                      {.schedule = Schedule::from_rows(parse_csv("0F2,0F0,0F1,0B1,0B2,0B0\n")), .loss = mean_square});
    const Tensor x = at::randn({3, 4}), y = at::randn({3, 4});
    const StepResult result = pipeline.step({x}, {.target = y, .return_outputs = true});
    ASSERT_EQ(result.losses.size(), 3U);
    for (int m = 0; m < 3; ++m) {
      const Tensor expected = (result.output.tensor()[m] - y[m]).pow(2).mean();
      EXPECT_TRUE(at::allclose(result.losses[static_cast<std::size_t>(m)], expected));
    }
    EXPECT_NEAR(result.loss(), (result.output.tensor() - y).pow(2).mean().item<double>(), 1e-6);
  });
}

TEST(Pipeline, RanksThatAreThreadsShareTheLoweredSchedule) {
  std::array<std::atomic<const Schedule*>, 3> seen{};
  run_ranks(quick(3), [&](World& world) {
    const Pipeline pipeline(world, {stage_for(world)}, {.microbatches = 6, .loss = mean_square});
    seen[world.rank().index()] = &pipeline.schedule();
    world.everyone().barrier();
    EXPECT_EQ(seen[world.rank().index()].load(), seen[0].load());
  });
}

TEST(Pipeline, OutputsAreReturnedOnlyWhereAskedFor) {
  run_ranks(quick(2), [](World& world) {
    Pipeline pipeline(world, {stage_for(world)}, {.microbatches = 2, .loss = mean_square});
    const Tensor x = at::ones({4, 4});
    EXPECT_TRUE(pipeline.step({x}, {.target = x}).output.is_none());
    const StepResult result = pipeline.step({x}, {.target = x, .return_outputs = true});
    EXPECT_EQ(result.output.is_none(), !world.is_last());
    EXPECT_EQ(result.has_loss(), world.is_last());
    if (!world.is_last()) {
      EXPECT_THAT(message_of([&] { (void)result.loss(); }), HasSubstr("broadcast_loss"));
    }
  });
}

TEST(Pipeline, TheLossCanBeSharedWithAllRanks) {
  std::mutex mutex;
  std::vector<double> losses;
  run_ranks(quick(3), [&](World& world) {
    Pipeline pipeline(world, {stage_for(world)}, {.microbatches = 3, .loss = mean_square, .broadcast_loss = true});
    const Tensor x = at::ones({7, 4});
    const StepResult result = pipeline.step({x}, {.target = x});
    const std::lock_guard lock(mutex);
    losses.push_back(result.loss());
  });
  ASSERT_EQ(losses.size(), 3U);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

TEST(Pipeline, SumAndMeanScaleAsTheLossOfTheWholeBatch) {
  const Tensor x = at::randn({7, 4}), y = at::randn({7, 4});  // ragged: 3, 2, 2
  for (const LossScale scale : {LossScale::kMean, LossScale::kSum}) {
    const auto loss = [&](const Tensor& output) {
      const Tensor square = (output - y.narrow(0, 0, output.size(0))).pow(2);
      return scale == LossScale::kMean ? square.mean() : square.sum();
    };
    std::vector<torch::nn::Sequential> modules{layer(), layer()};
    std::vector<Tensor> once(2);
    run_ranks(quick(2), [&](World& world) {
      auto& module = modules[world.rank().index()];
      const Tensor weight = module->parameters()[0];
      Pipeline pipeline(world, {make_stage(world.rank().value, module)},
                        {.microbatches = 3,
                         .loss =
                             [&](const Value& output, const Value& target, const ValueDict&) {
                               const Tensor square = (output.tensor() - target.tensor()).pow(2);
                               return scale == LossScale::kMean ? square.mean() : square.sum();
                             },
                         .loss_scale = scale});
      pipeline.step({x}, {.target = y});
      once[world.rank().index()] = weight.grad().clone();
      pipeline.step({x}, {.target = y});  // accumulated: the first step's gradient is not scaled again
      EXPECT_TRUE(at::allclose(weight.grad(), 2 * once[world.rank().index()]));
      pipeline.eval({x}, {.target = y});
      EXPECT_TRUE(at::allclose(weight.grad(), 2 * once[world.rank().index()]));
      module->zero_grad();
    });
    loss(modules[1]->forward(modules[0]->forward(x))).backward();
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(at::allclose(modules[i]->parameters()[0].grad(), once[i], 1e-5, 1e-6));
    }
  }
}

TEST(Pipeline, KeywordsReachAnyStageAndTheirGradientsComeBack) {
  run_ranks(quick(2), [](World& world) {
    const auto forward = [](const StageCall& call) -> Value {
      return call.tensor(0) * call.keyword("scale").tensor() * call.keyword("factor").real();
    };
    Pipeline pipeline(world, {Stage(world.rank().value, forward, {})},
                      {.schedule = "ZB-H1",
                       .microbatches = 2,
                       .loss = mean_square,
                       .keyword_splits = {{"scale", Split::replicate()}}});
    const Tensor x = at::randn({4, 4}).requires_grad_(true);
    Tensor scale = at::full({1}, world.is_first() ? 2.0 : 3.0).requires_grad_(true);
    const Tensor y = at::zeros({4, 4});
    pipeline.step({x}, {.target = y, .keywords = {{"scale", scale}, {"factor", 0.5}}});
    EXPECT_TRUE(scale.grad().defined()) << "a replicated keyword lost its gradient";
    EXPECT_EQ(x.grad().defined(), world.is_first());
    if (!world.is_first()) return;
    const Tensor u = x.detach().requires_grad_(true), a = scale.detach().requires_grad_(true);
    (u * a * 0.5 * 3.0 * 0.5).pow(2).mean().backward();
    EXPECT_TRUE(at::allclose(x.grad(), u.grad()));
    EXPECT_TRUE(at::allclose(scale.grad(), a.grad()));
  });
}

TEST(Pipeline, TargetsMayBeTreesAndLossesTakeKeywords) {
  run_ranks(quick(1), [](World& world) {
    const auto loss = [](const Value& output, const Value& target, const ValueDict& keywords) {
      EXPECT_EQ(keywords.at(0).second.real(), 0.25);
      return ((output.tensor() - target.at("value").tensor()) * target.at("mask").tensor()).pow(2).mean() * 0.25;
    };
    Pipeline pipeline(world, {make_stage(0, layer())}, {.schedule = "GPipe", .microbatches = 2, .loss = loss});
    const Tensor x = at::randn({4, 4});
    const Value target(ValueDict{{"value", at::zeros({4, 4})}, {"mask", at::ones({4, 1})}, {"weight", 2}});
    EXPECT_TRUE(pipeline.step({x}, {.target = target, .loss_keywords = {{"smoothing", 0.25}}}).has_loss());
  });
}

TEST(Pipeline, MicrobatchesMayComeAlreadyCut) {
  run_ranks(quick(2), [](World& world) {
    Stage stage = stage_for(world);
    const Tensor weight = stage.parameters()[0].second;
    Pipeline pipeline(world, {std::move(stage)}, {.microbatches = 2, .loss = mean_square});
    const Tensor x = at::arange(20).view({5, 4}) / 7.0, y = at::ones({5, 4});
    pipeline.step({x}, {.target = y});
    const Tensor expected = weight.grad().clone();
    weight.mutable_grad().reset();
    pipeline.step_microbatches({{x.narrow(0, 0, 3)}, {x.narrow(0, 3, 2)}}, {y.narrow(0, 0, 3), y.narrow(0, 3, 2)});
    EXPECT_TRUE(at::equal(weight.grad(), expected));
    EXPECT_THAT(message_of([&] { pipeline.step_microbatches({{x}}, {y}); }), HasSubstr("give one per microbatch"));
  });
}

TEST(Pipeline, EvalBuildsNoGraphAndWorksWhereNeighboursShareARank) {
  for (const char* schedule : {"ZBVZeroBubble", "DualPipeV", "1F1B-V", "LoopedBFS"}) {
    for (const int ranks : {1, 2}) {
      run_ranks(quick(ranks), [&](World& world) {
        const Schedule plan = make_schedule(schedule, {.ranks = ranks, .stages_per_rank = 2, .microbatches = 4});
        std::vector<Stage> stages;
        for (const StageId s : plan.placement.stages_of(world.rank())) {
          stages.push_back(Stage(s.value,
                                 [](const StageCall& call) -> Value {
                                   EXPECT_FALSE(at::GradMode::is_enabled());
                                   return call.tensor(0) + 1;
                                 },
                                 {{"w", at::ones({1}).requires_grad_(true)}}));
        }
        Pipeline pipeline(world, std::move(stages), {.schedule = schedule, .microbatches = 4});
        const StepResult result = pipeline.eval({at::zeros({8, 2})});
        EXPECT_EQ(result.output.is_none(), !pipeline.has_last_stage());
        if (pipeline.has_last_stage()) {
          EXPECT_TRUE(at::equal(result.output.tensor(), at::full({8, 2}, 2.0 * ranks)));
        }
      });
    }
  }
}

TEST(Pipeline, ShapesAreInferredWithoutTouchingAnything) {
  for (const bool normalises : {false, true}) {  // batch norm has no kernel for the meta device
    const char* schedule = normalises ? "1F1B" : "ZBVZeroBubble";
    run_ranks(quick(2), [&](World& world) {
      std::vector<Stage> stages;
      std::vector<torch::nn::Sequential> modules;
      int computed = 0;
      for (const StageId stage : stages_here(world, schedule)) {
        const std::int64_t in = 4 + stage.value;
        modules.push_back(torch::nn::Sequential(torch::nn::Linear(in, in + 1), torch::nn::Dropout(0.5)));
        if (normalises) modules.back()->push_back(torch::nn::BatchNorm1d(in + 1));
        auto module = modules.back();
        stages.push_back(make_stage(stage.value, module.ptr(), [&, module](const StageCall& call) mutable -> Value {
          computed += call.tensor(0).is_meta() ? 0 : 1;
          return module->forward(call.tensor(0));
        }));
      }
      std::vector<Tensor> before;
      for (auto& module : modules) {
        for (const Tensor& buffer : module->buffers()) before.push_back(buffer.clone());
        for (const Tensor& parameter : module->parameters()) before.push_back(parameter.detach().clone());
      }
      Pipeline pipeline(world, std::move(stages), {.schedule = schedule, .microbatches = 2, .loss = mean_square});
      const Tensor x = at::randn({5, 4});
      const std::vector<StageShapes> shapes = pipeline.infer_shapes({x});
      ASSERT_EQ(shapes.size(), 2 * modules.size());
      for (const StageShapes& shape : shapes) {
        const std::int64_t rows = shape.microbatch == MicrobatchId(0) ? 3 : 2;
        EXPECT_EQ(shape.outputs, (std::vector<TensorSpec>{{{rows, 5 + shape.stage.value}, at::kFloat}}));
      }
      EXPECT_EQ(computed > 0, normalises);
      std::size_t next = 0;
      for (auto& module : modules) {
        EXPECT_TRUE(module->is_training());
        for (const Tensor& buffer : module->buffers()) EXPECT_TRUE(at::equal(buffer, before[next++]));
        for (const Tensor& parameter : module->parameters()) {
          EXPECT_TRUE(at::equal(parameter, before[next++]));
          EXPECT_TRUE(parameter.requires_grad());
          EXPECT_FALSE(parameter.grad().defined());
        }
      }
      EXPECT_THAT(message_of([&] { pipeline.infer_shapes({at::randn({5, 3})}); }), HasSubstr("stage 0, microbatch 0"));
      const std::int64_t width = 4 + pipeline.schedule().stages();
      EXPECT_EQ(pipeline.step({x}, {.target = at::zeros({5, width})}).has_loss(), pipeline.has_last_stage());
    });
  }
}

TEST(Pipeline, ModulesKnowStageAndMicrobatchAndKeepTheirMode) {
  run_ranks(quick(1), [](World& world) {
    auto module = torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Dropout(0.5));
    module[1]->eval();  // the user froze this one
    std::vector<int> seen;
    Stage stage = make_stage(0, module.ptr(), [&, module](const StageCall& call) mutable -> Value {
      EXPECT_EQ(whereabouts().stage, StageId(0));
      EXPECT_EQ(whereabouts().microbatch, call.microbatch);
      seen.push_back(whereabouts().microbatch.value);
      return module->forward(call.tensor(0));
    });
    Pipeline pipeline(world, {std::move(stage)}, {.microbatches = 2, .loss = mean_square});
    const Tensor x = at::randn({2, 4});
    pipeline.eval({x});
    EXPECT_TRUE(module->is_training());
    EXPECT_FALSE(module[1]->is_training());
    pipeline.step({x}, {.target = x});
    EXPECT_EQ(seen, (std::vector<int>{0, 1, 0, 1}));
    EXPECT_EQ(whereabouts().stage, StageId(-1));
  });
}

TEST(Pipeline, AuxiliaryLossesAddToTheGradients) {
  const Tensor x = at::randn({4, 4}), y = at::randn({4, 4});
  std::vector<torch::nn::Sequential> modules{layer(), layer()};
  std::vector<Tensor> got;
  run_ranks(quick(2), [&](World& world) {
    StageOptions options;
    options.auxiliary_loss = [](const Value& output) { return output.tensor().pow(2).mean(); };
    Pipeline pipeline(world, {make_stage(world.rank().value, modules[world.rank().index()], options)},
                      {.schedule = "ZB-H1", .microbatches = 2, .loss = mean_square});
    pipeline.step({x}, {.target = y});
  });
  for (auto& module : modules) {
    got.push_back(module->parameters()[0].grad().clone());
    module->zero_grad();
  }
  const Tensor h = modules[0]->forward(x), z = modules[1]->forward(h);
  ((z - y).pow(2).mean() + h.pow(2).mean() + z.pow(2).mean()).backward();
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::allclose(modules[i]->parameters()[0].grad(), got[i], 1e-5, 1e-6));
  }
}

TEST(Pipeline, WeightGradientsOfYourOwnRunInTheWeightPart) {
  for (const char* csv : {"0F0,0F1,0I0,0I1,0W0,0W1\n", "0F0,0B0,0F1,0B1\n"}) {
    run_ranks(quick(1), [&](World& world) {
      std::vector<std::string> log;
      StageOptions options;
      int built = 0;
      options.deferred_weights = [&] {
        log.push_back("build");
        return [&log, number = built++] { log.push_back("run " + std::to_string(number)); };
      };
      Pipeline pipeline(world, {make_stage(0, layer(), options)},
                        {.schedule = Schedule::from_rows(parse_csv(csv)), .loss = mean_square});
      const Tensor x = at::randn({2, 4});
      pipeline.step({x}, {.target = x});
      const bool split = std::string(csv).find('I') != std::string::npos;
      EXPECT_EQ(log, split ? (std::vector<std::string>{"build", "build", "run 0", "run 1"})
                           : (std::vector<std::string>{"build", "run 0", "build", "run 1"}));
    });
  }
}

TEST(Pipeline, FullBackwardFallbackGivesTheSameGradients) {
  run_ranks(quick(1), [](World& world) {
    std::vector<Tensor> gradients;
    for (const bool fallback : {false, true}) {
      torch::manual_seed(2);
      auto module = layer();
      StageOptions options;
      options.full_backward = fallback;
      Pipeline pipeline(world, {make_stage(0, module, options)},
                        {.schedule = "ZB-H1", .microbatches = 3, .loss = mean_square});
      bool early = false;
      pipeline.on(ActionKind::kBackwardWeight, [&](const ActionContext& context) {
        if (context.action().microbatch() == MicrobatchId(0)) early = module->parameters()[0].grad().defined();
        context.run();
      });
      const Tensor x = at::randn({6, 4});
      pipeline.step({x}, {.target = x});
      EXPECT_EQ(early, fallback) << "the weights have their gradients before the weight part, or not";
      gradients.push_back(module->parameters()[0].grad());
    }
    EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
  });
}

TEST(Pipeline, EdgesWithoutGradientAndOneOutputForSeveralStages) {
  run_ranks(quick(3), [](World& world) {
    const auto forward = [&](const StageCall& call) -> Value {
      if (call.stage == StageId(0)) return ValueList{call.tensor(0) * 2, call.tensor(0) * 3};
      Tensor sum = call.tensor(0);
      for (std::size_t i = 1; i < call.arguments.size(); ++i) sum = sum * call.tensor(i);
      return sum;
    };
    const std::vector<Edge> edges = {
        {.from = StageId(0), .output = 0, .to = StageId(1), .argument = 0},
        {.from = StageId(0), .output = 1, .to = StageId(1), .argument = 1, .gradient = false},
        {.from = StageId(1), .output = 0, .to = StageId(2), .argument = 0},
        {.from = StageId(0), .output = 1, .to = StageId(2), .argument = 1}};
    Pipeline pipeline(world, {Stage(world.rank().value, forward, {})},
                      {.schedule = "ZB-H1", .microbatches = 2, .loss = mean_square, .edges = edges});
    const Tensor x = at::randn({4, 2}, at::kDouble).requires_grad_(true);
    pipeline.step({x}, {.target = at::zeros({4, 2}, at::kDouble)});
    if (!world.is_first()) return;
    const Tensor u = x.detach().requires_grad_(true);
    ((u * 2) * (u * 3).detach() * (u * 3)).pow(2).mean().backward();
    EXPECT_TRUE(at::allclose(x.grad(), u.grad()));
  });
}

TEST(Pipeline, GradientsOfAValueWithManyUsesAddUpInTheOrderOfOneDevice) {
  // Stage 0 makes a value that every later stage uses twice.
  constexpr int kStages = 4;
  const auto use = [](const Tensor& x, const Tensor& shared, int stage) {
    return x + shared * (0.7 + stage) + at::sin(shared) * 1.3;
  };
  torch::manual_seed(3);
  const Tensor start = at::randn({4, 5}), target = at::randn({4, 5});
  const Tensor alone = at::randn({5, 5}).set_requires_grad(true);
  const Tensor first = alone.detach().clone();
  for (int m = 0; m < 2; ++m) {
    const Tensor shared = at::matmul(start.narrow(0, 2 * m, 2), alone);
    Tensor x = shared * 0.5;
    for (int stage = 1; stage < kStages; ++stage) x = use(x, shared, stage);
    ((x - target.narrow(0, 2 * m, 2)).pow(2).mean() * 0.5).backward();
  }
  for (const char* schedule : {"1F1B", "ZB-H1"}) {
    run_ranks(quick(kStages), [&](World& world) {
      const int index = world.rank().value;
      const Tensor w = first.clone().set_requires_grad(true);
      Stage stage(
          index,
          [&](const StageCall& call) -> Value {
            if (index > 0) return use(call.tensor(0), call.tensor(1), index);
            const Tensor shared = at::matmul(call.tensor(0), w);
            return ValueList{shared * 0.5, shared};
          },
          index == 0 ? NamedTensors{{"w", w}} : NamedTensors{});
      std::vector<Edge> edges;
      for (int to = 1; to < kStages; ++to) {
        edges.push_back({.from = StageId(to - 1), .output = 0, .to = StageId(to), .argument = 0});
        edges.push_back({.from = StageId(0), .output = 1, .to = StageId(to), .argument = 1});
      }
      Pipeline pipeline(world, {std::move(stage)},
                        {.schedule = schedule, .microbatches = 2, .loss = mean_square, .edges = edges});
      pipeline.step({start}, {.target = target});
      if (index == 0) {
        EXPECT_TRUE(w.grad().equal(alone.grad())) << (w.grad() - alone.grad()).abs().max();
      }
    });
  }
}

}  // namespace
}  // namespace stagecraft
