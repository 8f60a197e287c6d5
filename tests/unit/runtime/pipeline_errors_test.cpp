// Failures in a pipeline: the same error on every rank, no hang, and the next step works.

#include <atomic>
#include <thread>

#include "pipeline_testing.h"
#include "support/simulated_time.h"

namespace stagecraft {
namespace {

using namespace pipeline_testing;

TEST(PipelineErrors, SetUp) {
  const auto refused = [](int ranks, auto make) {
    std::string first;
    std::mutex mutex;
    run_ranks(quick(ranks), [&](World& world) {
      const std::string said = message_of([&] { make(world); });
      const std::lock_guard lock(mutex);
      EXPECT_NE(said, "nothing was thrown") << "on rank " << world.rank().value;
      if (first.empty() || said.size() < first.size()) first = said;
    });
    return first;
  };
  const auto one = [](World& world, int index, PipelineOptions options = {}) {
    if (options.microbatches == 0 && !options.schedule.given()) options.microbatches = 1;
    Pipeline(world, {make_stage(index, layer())}, std::move(options));
  };
  EXPECT_THAT(refused(2, [&](World& world) { Pipeline(world, {make_stage(world.rank().value, layer())}, {}); }),
              HasSubstr("the number of microbatches is not given: set it in the options, to 8"));
  EXPECT_THAT(refused(2,
                      [&](World& world) {
                        Pipeline(world, {make_stage(world.rank().value, layer())},
                                 {.stages_per_rank = 2, .microbatches = 1});
                      }),
              HasSubstr("stages_per_rank is 2, but rank"));
  EXPECT_THAT(refused(2, [&](World& world) { one(world, 0); }), HasSubstr("wants stages 1 there"));
  EXPECT_THAT(refused(2, [&](World& world) { one(world, world.rank().value + 1); }), HasSubstr("stage"));
  EXPECT_THAT(refused(1, [&](World& world) { one(world, 5); }), HasSubstr("stages 0 to 0"));
  EXPECT_THAT(refused(1, [&](World& world) { one(world, -1); }), HasSubstr("numbered from 0, got stage -1"));
  EXPECT_THAT(refused(2,
                      [&](World& world) {
                        if (world.is_first()) return one(world, 0);
                        Pipeline(world, {}, {.microbatches = 1});
                      }),
              HasSubstr("at least as many stages"));
  EXPECT_THAT(refused(1, [&](World& world) { one(world, 0, {.schedule = "NoSuch"}); }),
              HasSubstr("the known ones are"));
  EXPECT_THAT(refused(1, [&](World& world) { one(world, 0, {.schedule = "no.csv"}); }), HasSubstr("cannot be read"));
  EXPECT_THAT(refused(1, [&](World& world) { one(world, 0, {.microbatches = -2}); }), HasSubstr("got -2"));
  EXPECT_THAT(
      refused(1, [&](World& world) { one(world, 0, {.schedule = Schedule::from_rows(parse_csv("0F0,0W0,0I0\n"))}); }),
      HasSubstr("its I does not stand before it"));
  EXPECT_THAT(refused(1,
                      [&](World& world) {
                        one(world, 0, {.edges = {{.from = StageId(0), .output = 0, .to = StageId(0), .argument = 0}}});
                      }),
              HasSubstr("to a later one"));
}

TEST(PipelineErrors, RanksWithDifferentOptions) {
  const auto said = [](const std::function<void(World&, PipelineOptions&, StageOptions&)>& change) {
    Sayings sayings;
    run_ranks(quick(3), [&](World& world) {
      PipelineOptions options = {.schedule = "1F1B", .microbatches = 4};
      StageOptions stage_options;
      change(world, options, stage_options);
      sayings.add(world.rank(), message_of([&] {
                    Pipeline(world, {make_stage(world.rank().value, layer(), stage_options)}, options);
                  }));
    });
    EXPECT_EQ(sayings.of(0), sayings.of(1));
    EXPECT_EQ(sayings.of(0), sayings.of(2));
    return sayings.of(0);
  };
  EXPECT_THAT(said([](World& world, PipelineOptions& options, StageOptions&) {
                if (world.is_last()) options.schedule = "GPipe";
              }),
              AllOf(HasSubstr("rank 2 has schedule 'GPipe (3 ranks, 3 stages, 4 microbatches"),
                    HasSubstr("the others have '1F1B (3 ranks, 3 stages, 4 microbatches")));
  EXPECT_THAT(said([](World& world, PipelineOptions& options, StageOptions&) {
                if (world.is_first()) options.microbatches = 5;
              }),
              HasSubstr("rank 0 has schedule '1F1B (3 ranks, 3 stages, 5 microbatches"));
  EXPECT_THAT(said([](World& world, PipelineOptions& options, StageOptions&) {
                if (world.rank().value == 1) options.broadcast_loss = true;
              }),
              HasSubstr("rank 1 has broadcast_loss 'on', the others have 'off'"));
  using Change = std::function<void(PipelineOptions&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"ties",
       [](PipelineOptions& options) {
         options.ties = {{"0.weight", {StageId(0), StageId(1)}}};
       }},
      {"loss_scale", [](PipelineOptions& options) { options.loss_scale = LossScale::kSum; }},
      {"loss_weight", [](PipelineOptions& options) { options.loss_weight = counted_targets(); }},
      {"seed", [](PipelineOptions& options) { options.seed = 3; }},
      {"argument_splits", [](PipelineOptions& options) { options.argument_splits = {Split::along(1)}; }},
      {"keyword_splits", [](PipelineOptions& options) { options.keyword_splits["mask"] = Split::replicate(); }},
      {"target_split",
       [](PipelineOptions& options) {
         options.target_split = Split::into({1, 1, 1, 3});
       }},
      {"bucket_bytes", [](PipelineOptions& options) { options.bucket_bytes = 8; }},
      {"edges",
       [](PipelineOptions& options) {
         options.edges = {{.from = StageId(0), .output = 0, .to = StageId(1), .argument = 0}};
       }},
  };
  for (const auto& [topic, change] : changes) {
    EXPECT_THAT(said([&change = change](World& world, PipelineOptions& options, StageOptions&) {
                  if (world.rank().value == 1) change(options);
                }),
                HasSubstr("rank 1 has " + topic + " '"));
  }
  EXPECT_THAT(said([](World& world, PipelineOptions&, StageOptions& stage) {
                stage.inputs = {{{2, 4}, at::kFloat}};
                stage.outputs = {{{2, 4}, world.rank().value == 1 ? at::kDouble : at::kFloat}};
              }),
              HasSubstr("stage 1 on rank 1 gives Double [2, 4], but stage 2 on rank 2 takes Float [2, 4]"));
}

TEST(PipelineErrors, RanksWithDifferentModels) {
  Sayings sayings;
  run_ranks(quick(2), [&](World& world) {
    torch::nn::Sequential model;
    for (int i = 0; i < (world.is_first() ? 4 : 6); ++i) model->push_back(torch::nn::Linear(4, 4));
    sayings.add(world.rank(), message_of([&] { Pipeline(world, split(model, world), {.microbatches = 2}); }));
  });
  for (int r = 0; r < 2; ++r) {
    EXPECT_THAT(sayings.of(r), AllOf(HasSubstr("rank 1 has model 'a Sequential of 6 layers cut into [3, 3]"),
                                     HasSubstr("the others have 'a Sequential of 4 layers cut into [2, 2]")));
  }
}

TEST(PipelineErrors, RanksThatTieDifferentParameters) {
  Sayings sayings;
  run_ranks(quick(2), [&](World& world) {
    const Tensor weight = at::randn({4, 4}).set_requires_grad(world.is_first());
    Stage stage(
        world.rank().value, [=](const StageCall& call) { return Value(at::matmul(call.tensor(0), weight)); },
        NamedTensors{{"weight", weight}});
    sayings.add(
        world.rank(), message_of([&] {
          Pipeline(world, {std::move(stage)}, {.microbatches = 2, .ties = {{"weight", {StageId(0), StageId(1)}}}});
        }));
  });
  for (int r = 0; r < 2; ++r) {
    EXPECT_THAT(sayings.of(r), HasSubstr("rank 1 has tied parameter weight 'Float [4, 4], frozen'"));
  }
}

/// Runs a step that fails, records each rank's error, and checks that the next step works.
struct Failing {
  int ranks = 3;
  std::string schedule = "ZB-H1";
  std::function<void(const StageCall&, bool fail)> in_forward = [](const StageCall&, bool) {};
  std::function<void(Pipeline&, World&, bool fail)> prepare = [](Pipeline&, World&, bool) {};
  std::function<Tensor(bool fail)> input = [](bool) { return at::randn({6, 4}); };
  std::function<Value(bool fail)> target = [](bool) { return Value(at::randn({6, 4})); };
  StageOptions options = {};
  bool broadcast_loss = false;

  void expect_on_every_rank(const std::string& text) const {
    Sayings sayings;
    run_ranks(quick(ranks), [&](World& world) {
      bool fail = false;
      auto module = layer();
      Stage stage = make_stage(
          world.rank().value, module.ptr(),
          [&, module](const StageCall& call) mutable -> Value {
            in_forward(call, fail);
            return module->forward(call.tensor(0));
          },
          options);
      Pipeline pipeline(
          world, {std::move(stage)},
          {.schedule = schedule, .microbatches = 3, .loss = mean_square, .broadcast_loss = broadcast_loss});
      pipeline.step({input(false)}, {.target = target(false)});
      fail = true;
      prepare(pipeline, world, true);
      sayings.add(world.rank(), message_of([&] { pipeline.step({input(true)}, {.target = target(true)}); }));
      fail = false;
      prepare(pipeline, world, false);
      module->zero_grad();
      const StepResult result = pipeline.step({input(false)}, {.target = target(false)});
      EXPECT_EQ(result.has_loss(), world.is_last() || broadcast_loss);
      EXPECT_TRUE(module->parameters()[0].grad().defined());
    });
    for (int r = 0; r < ranks; ++r) EXPECT_THAT(sayings.of(r), HasSubstr(text)) << "on rank " << r;
  }
};

TEST(PipelineErrors, AreShownWithMoreRanksThanSteps) {
  Sayings sayings;
  run_ranks(quick(6), [&](World& world) {
    auto module = layer();
    Stage stage = make_stage(world.rank().value, module.ptr(), [&, module](const StageCall& call) mutable -> Value {
      if (call.stage == StageId(5)) throw std::runtime_error("the last one is broken");
      return module->forward(call.tensor(0));
    });
    Pipeline pipeline(world, {std::move(stage)}, {.schedule = "GPipe", .microbatches = 1, .loss = mean_square});
    const Tensor x = at::randn({1, 4});
    sayings.add(world.rank(), message_of([&] { pipeline.step({x}, {.target = x}); }));
  });
  for (int r = 0; r < 6; ++r) {
    EXPECT_THAT(sayings.of(r), HasSubstr("action 5F0 (stage 5, microbatch 0): the last one is broken"));
    EXPECT_THAT(sayings.of(r), HasSubstr("<-- here: rank 5"));
  }
}

TEST(PipelineErrors, AThrowingModuleOnAnyStage) {
  for (int stage = 0; stage < 3; ++stage) {
    for (int microbatch = 0; microbatch < 3; ++microbatch) {
      Failing failing;
      failing.in_forward = [=](const StageCall& call, bool fail) {
        if (fail && call.stage == StageId(stage) && call.microbatch == MicrobatchId(microbatch)) {
          throw std::runtime_error("the module is broken");
        }
      };
      const std::string action = std::to_string(stage) + "F" + std::to_string(microbatch);
      failing.expect_on_every_rank("action " + action + " (stage " + std::to_string(stage) + ", microbatch " +
                                   std::to_string(microbatch) + "): the module is broken");
    }
  }
}

TEST(PipelineErrors, AnExceptionOfAnyType) {
  Failing failing;
  failing.in_forward = [=](const StageCall& call, bool fail) {
    if (fail && call.stage == StageId(1) && call.microbatch == MicrobatchId(1)) throw 7;
  };
  failing.expect_on_every_rank("action 1F1 (stage 1, microbatch 1): an exception of unknown type");

  Failing in_overlap;  // before any action has begun
  in_overlap.prepare = [](Pipeline& pipeline, World& world, bool fail) {
    if (!world.is_first()) return;
    pipeline.on(ActionKind::kUnshard, fail ? [](const ActionContext&) { throw "no std::exception either"; }
                                           : std::function<void(const ActionContext&)>());
  };
  in_overlap.expect_on_every_rank("an exception of unknown type");
}

TEST(PipelineErrors, TheFirstStepMayFailWhileOthersStillMakeThePipeline) {
  // Replicas get their weights from replica 0, which does not wait for them.
  std::atomic<int> failures = 0;
  run_ranks({.ranks = 1, .replicas = 3, .timeout = kPatience}, [&](World& world) {
    bool fail = true;
    const Tensor weight = at::randn({300, 300}).set_requires_grad(true);
    Stage stage(
        0,
        [&](const StageCall& call) {
          if (fail && world.replica() == 0) throw std::runtime_error("at once");
          return Value(at::matmul(call.tensor(0), weight));
        },
        NamedTensors{{"weight", weight}});
    Pipeline pipeline(world, {std::move(stage)}, {.microbatches = 1, .loss = mean_square});
    const Tensor x = at::randn({2, 300});
    failures += message_of([&] { pipeline.step({x}, {.target = x}); }).find("at once") != std::string::npos ? 1 : 0;
    fail = false;
    pipeline.step({x}, {.target = x});
  });
  EXPECT_EQ(failures, 3);
}

TEST(PipelineErrors, CollectivesStayInStepAfterwards) {
  // When the first rank fails at the very end of its step, the others already wait for the loss, or have it.
  Failing failing;
  failing.broadcast_loss = true;
  failing.prepare = [](Pipeline& pipeline, World& world, bool fail) {
    if (!world.is_first()) return;
    pipeline.on(ActionKind::kReshard, fail ? [](const ActionContext&) { throw std::runtime_error("at the end"); }
                                           : std::function<void(const ActionContext&)>());
  };
  failing.expect_on_every_rank("at the end");
}

TEST(PipelineErrors, AnyActionThatThrows) {
  for (const ActionKind kind :
       {ActionKind::kForward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight, ActionKind::kSendForward,
        ActionKind::kRecvForward, ActionKind::kSendBackward, ActionKind::kRecvBackward, ActionKind::kUnshard,
        ActionKind::kReshard, ActionKind::kReduceGrad}) {
    Failing failing;
    failing.prepare = [=](Pipeline& pipeline, World& world, bool fail) {
      if (world.rank() != RankId(1)) return;
      pipeline.on(kind, fail ? [](const ActionContext&) { throw std::runtime_error("no more"); }
                             : std::function<void(const ActionContext&)>());
    };
    failing.expect_on_every_rank("no more");
  }
}

TEST(PipelineErrors, WrongShapesTypesRowsAndTargets) {
  Failing shape;
  shape.input = [](bool fail) { return at::randn({6, fail ? 5 : 4}); };
  shape.expect_on_every_rank("stage 0, microbatch 0");

  Failing declared;
  declared.options.inputs = {{{TensorSpec::kAny, 4}, at::kFloat}};
  declared.input = [](bool fail) { return at::randn({6, 4}, fail ? at::kDouble : at::kFloat); };
  declared.expect_on_every_rank("input 0: expected Float [any, 4], got Double [2, 4]");

  Failing rows;
  rows.input = [](bool fail) { return at::randn({fail ? 2 : 6, 4}); };
  rows.expect_on_every_rank("argument 0: shape [2, 4] has 2 rows along dimension 0, fewer than the 3 microbatches");

  Failing target;
  target.target = [](bool fail) { return fail ? Value() : Value(at::randn({6, 4})); };
  target.expect_on_every_rank("got no target");

  Failing loss;
  loss.target = [](bool fail) { return Value(at::randn({6, fail ? 3 : 4})); };
  loss.expect_on_every_rank("stage 2");

  Failing fewer;  // one row of target per microbatch would be broadcast over two of output
  fewer.target = [](bool fail) { return Value(at::randn({fail ? 3 : 6, 4})); };
  fewer.expect_on_every_rank("microbatch 0 has 2 rows of input, but 1 of target");
  fewer.ranks = 1;
  fewer.expect_on_every_rank("target has 3 rows, but argument 0 has 6");
}

TEST(PipelineErrors, ArgumentsAndKeywordsOfDifferentRows) {
  run_ranks(quick(1), [](World& world) {
    auto linear = torch::nn::Linear(4, 4);
    const auto forward = [linear](const StageCall& call) mutable -> Value {
      const Value scale = call.keyword("scale");
      const Tensor y = linear(call.tensor(0) + call.tensor(1));
      return scale.is_none() ? y : y * scale.tensor();
    };
    Pipeline pipeline(world, {make_stage(0, linear.ptr(), forward)}, {.microbatches = 2, .loss = mean_square});
    const Tensor x = at::randn({4, 4});
    pipeline.step({x, x}, {.target = x, .keywords = {{"scale", at::ones({4, 1})}}});
    EXPECT_THAT(message_of([&] {
                  pipeline.step({x, at::randn({2, 4})}, {.target = x});
                }),
                HasSubstr("argument 1 has 2 rows, but argument 0 has 4"));
    EXPECT_THAT(message_of([&] {
                  pipeline.step({x, x}, {.target = x, .keywords = {{"scale", at::ones({2, 1})}}});
                }),
                AllOf(HasSubstr("keyword 'scale' has 2 rows"), HasSubstr("Split::replicate")));
  });
}

TEST(PipelineErrors, ALossThatTrainsNothing) {
  std::atomic<bool> detaches = false;
  run_ranks(quick(2), [&](World& world) {
    Pipeline pipeline(world, {stage_for(world)},
                      {.microbatches = 2, .loss = [&](const Value& output, const Value& target, const ValueDict&) {
                         const Tensor y = output.tensor();
                         return ((detaches ? y.detach() : y) - target.tensor()).pow(2).mean();
                       }});
    const Tensor x = at::randn({4, 4});
    pipeline.step({x}, {.target = x});
    world.everyone().barrier();
    detaches = true;
    EXPECT_THAT(message_of([&] { pipeline.step({x}, {.target = x}); }),
                HasSubstr("does not depend on any parameter that is trained"));
    EXPECT_EQ(pipeline.eval({x}, {.target = x}).has_loss(), world.is_last());
  });
}

TEST(PipelineErrors, AModuleThatWouldLoseArguments) {
  run_ranks(quick(1), [](World& world) {
    const Tensor x = at::randn({4, 4});
    Pipeline sequential(world, {make_stage(0, layer())}, {.microbatches = 2, .loss = mean_square});
    EXPECT_THAT(message_of([&] {
                  sequential.step({x, x}, {.target = x});
                }),
                HasSubstr("stage 0 got 2 arguments, but its module takes 1"));
    Pipeline module(world, {make_stage(0, torch::nn::Bilinear(4, 4, 4))}, {.microbatches = 2, .loss = mean_square});
    module.step({x, x}, {.target = x});
    EXPECT_THAT(message_of([&] {
                  module.step({x, x, x}, {.target = x});
                }),
                HasSubstr("stage 0 got 3 arguments, but its module takes 2"));
  });
}

TEST(PipelineErrors, InPlaceOnAnInputIsRefusedUnlessCopied) {
  for (const bool copies : {false, true}) {
    run_ranks(quick(2), [&](World& world) {
      StageOptions options;
      options.copy_inputs = copies;
      auto linear = torch::nn::Linear(4, 4);
      Stage stage = make_stage(
          world.rank().value, linear.ptr(),
          [&, linear](const StageCall& call) mutable -> Value {
            Tensor x = call.tensor(0);
            return world.is_first() ? linear(x) : x.mul_(2);
          },
          options);
      Pipeline pipeline(world, {std::move(stage)}, {.microbatches = 2, .loss = mean_square});
      const Tensor x = at::randn({4, 4});
      const std::string said = message_of([&] { pipeline.step({x}, {.target = x}); });
      EXPECT_THAT(said, HasSubstr(copies ? "nothing was thrown" : "in-place")) << "on rank " << world.rank().value;
      if (!copies) {
        EXPECT_THAT(said, HasSubstr("set copy_inputs in its StageOptions"));
      }
    });
  }
}

TEST(PipelineErrors, CopiedInputsAreTheStagesOwnOnTheFirstStageToo) {
  run_ranks(quick(1), [](World& world) {
    auto linear = torch::nn::Linear(4, 4);
    Stage stage = make_stage(0, linear.ptr(),
                             [linear](const StageCall& call) mutable -> Value {
                               Tensor x = call.tensor(0);
                               Tensor scale = call.keyword("scale").tensor();
                               return linear(x.mul_(2) * scale.mul_(3));
                             },
                             {.copy_inputs = true});
    Pipeline pipeline(world, {std::move(stage)}, {.microbatches = 2, .loss = mean_square});
    const Tensor x = at::randn({4, 4}), scale = at::rand({4, 1}).set_requires_grad(true);
    const Tensor x_before = x.clone(), scale_before = scale.detach().clone();
    const double first = pipeline.step({x}, {.target = x_before, .keywords = {{"scale", scale}}}).loss();
    EXPECT_EQ(pipeline.step({x}, {.target = x_before, .keywords = {{"scale", scale}}}).loss(), first);
    EXPECT_TRUE(x.equal(x_before));
    EXPECT_TRUE(scale.equal(scale_before));
    EXPECT_TRUE(scale.grad().defined());
  });
}

TEST(PipelineErrors, ALossThatIsNotOneNumber) {
  run_ranks(quick(1), [](World& world) {
    Pipeline pipeline(world, {make_stage(0, layer())},
                      {.microbatches = 1, .loss = [](const at::Tensor& output, const at::Tensor&) { return output; }});
    const Tensor x = at::randn({2, 4});
    EXPECT_THAT(message_of([&] { pipeline.step({x}, {.target = x}); }),
                HasSubstr("must be one number, got shape [2, 4]"));
  });
}

TEST(PipelineErrors, ARankThatLeavesTakesTheOthersAlong) {
  EXPECT_THAT(message_of([] {
                run_ranks(quick(3), [](World& world) {
                  Pipeline pipeline(world, {stage_for(world)}, {.microbatches = 3, .loss = mean_square});
                  const Tensor x = at::randn({3, 4});
                  pipeline.step({x}, {.target = x});
                  if (world.rank() == RankId(1)) throw std::runtime_error("rank 1 gives up");
                  pipeline.step({x}, {.target = x});
                });
              }),
              HasSubstr("rank 1 gives up"));
}

TEST(PipelineErrors, HowToCutASequentialIsRefusedWhereStagesAreGiven) {
  run_ranks(quick(1), [](World& world) {
    const auto with = [&](const SplitOptions& split) {
      return message_of(
          [&] { Pipeline(world, {stage_for(world)}, {.microbatches = 1, .loss = mean_square, .split = split}); });
    };
    EXPECT_THAT(with({.layers = {2}}),
                HasSubstr("split says how a Sequential is cut, but the stages of this pipeline"));
    EXPECT_THAT(with({.balance = Balance::kParameters}), HasSubstr("leave it out"));
    EXPECT_EQ(with({}), "nothing was thrown");
  });
}

/// A transport that matches messages by their order.
class InOrderChannel : public SimulatedTimeChannel {
 public:
  using SimulatedTimeChannel::SimulatedTimeChannel;
  [[nodiscard]] CommModel model() const override { return CommModel::kInOrder; }
};

TEST(PipelineErrors, AScheduleIsVerifiedForTheMessagesOfItsTransport) {
  const Schedule crossed = Schedule::from_rows(parse_csv("0F0,0F1,0SEND_F0,0SEND_F1\n1RECV_F1,1RECV_F0,1F0,1F1\n"));
  /// What the ranks said; whoever hears it from the other one puts that rank's number before it.
  const auto said = [&](const auto& channel_of) {
    LocalFabric fabric(2);
    SimulatedClocks clocks(2);
    Sayings sayings;
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        World world(std::make_shared<Transport>(channel_of(fabric.channel(RankId(r)), clocks)), at::kCPU, kPatience);
        sayings.add(RankId(r), message_of([&] { Pipeline(world, {stage_for(world)}, {.schedule = crossed}); }));
      });
    }
    for (std::thread& thread : threads) thread.join();
    return std::vector<std::string>{sayings.of(0), sayings.of(1)};
  };
  EXPECT_THAT(
      said([](auto below, auto& clocks) { return std::make_unique<SimulatedTimeChannel>(std::move(below), clocks); }),
      testing::Each("nothing was thrown"));
  EXPECT_THAT(said([](auto below, auto& clocks) { return std::make_unique<InOrderChannel>(std::move(below), clocks); }),
              testing::Each(HasSubstr("matched by order it would take the wrong message")));
}

}  // namespace
}  // namespace stagecraft
