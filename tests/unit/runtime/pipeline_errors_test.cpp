// What can go wrong in a pipeline: the same error on every rank, no hang, and the next step works.

#include <thread>

#include "pipeline_testing.h"

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
    Pipeline(world, {make_stage(index, layer())}, std::move(options));
  };
  EXPECT_THAT(refused(2, [&](World& world) { one(world, 0); }), HasSubstr("wants stages 1 there"));
  EXPECT_THAT(refused(2, [&](World& world) { one(world, world.rank().value + 1); }), HasSubstr("stage"));
  EXPECT_THAT(refused(1, [&](World& world) { one(world, 5); }), HasSubstr("stages 0 to 0"));
  EXPECT_THAT(refused(1, [&](World& world) { one(world, -1); }), HasSubstr("numbered from 0, got stage -1"));
  EXPECT_THAT(refused(2,
                      [&](World& world) {
                        if (world.is_first()) return one(world, 0);
                        Pipeline(world, {}, {});
                      }),
              HasSubstr("at least as many stages"));
  EXPECT_THAT(refused(1, [&](World& world) { one(world, 0, {.schedule = "NoSuch"}); }),
              HasSubstr("the known ones are"));
  EXPECT_THAT(refused(1, [&](World& world) { one(world, 0, {.schedule = "no.csv"}); }), HasSubstr("cannot be read"));
  EXPECT_THAT(refused(1, [&](World& world) { one(world, 0, {.microbatches = -2}); }), HasSubstr("got -2"));
  EXPECT_THAT(
      refused(1, [&](World& world) { one(world, 0, {.plan = Schedule::from_rows(parse_csv("0F0,0W0,0I0\n"))}); }),
      HasSubstr("its I does not stand before it"));
  EXPECT_THAT(
      refused(1, [&](World& world) { one(world, 0, {.edges = {{.from = 0, .output = 0, .to = 0, .argument = 0}}}); }),
      HasSubstr("to a later one"));
}

TEST(PipelineErrors, RanksThatDoNotMeanTheSamePipeline) {
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
  EXPECT_THAT(said([](World& world, PipelineOptions&, StageOptions& stage) {
                stage.inputs = {{{2, 4}, at::kFloat}};
                stage.outputs = {{{2, 4}, world.rank().value == 1 ? at::kDouble : at::kFloat}};
              }),
              HasSubstr("stage 1 on rank 1 gives Double [2, 4], but stage 2 on rank 2 takes Float [2, 4]"));
}

/// Runs a step that fails, tells what each rank said, and sees that the next step works.
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
    std::mutex mutex;
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

TEST(PipelineErrors, CollectivesStayInStepAfterwards) {
  // When the first rank fails at its very end, the others are waiting for the loss already, or have it.
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
    });
  }
}

TEST(PipelineErrors, ALossThatIsNotOneNumber) {
  run_ranks(quick(1), [](World& world) {
    Pipeline pipeline(world, {make_stage(0, layer())},
                      {.loss = [](const Value& output, const Value&, const ValueDict&) { return output.tensor(); }});
    const Tensor x = at::randn({2, 4});
    EXPECT_THAT(message_of([&] { pipeline.step({x}, {.target = x}); }),
                HasSubstr("must be one number, got shape [2, 4]"));
  });
}

TEST(PipelineErrors, AWaitThatTakesTooLongSaysWhatItWaitedFor) {
  Sayings sayings;
  run_ranks({.ranks = 2, .timeout = std::chrono::milliseconds(300)}, [&](World& world) {
    auto module = layer();
    Stage stage = make_stage(world.rank().value, module.ptr(), [&, module](const StageCall& call) mutable -> Value {
      if (world.is_first() && call.microbatch == MicrobatchId(1)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(800));
      }
      return module->forward(call.tensor(0));
    });
    Pipeline pipeline(world, {std::move(stage)}, {.schedule = "GPipe", .microbatches = 2, .loss = mean_square});
    const Tensor x = at::randn({4, 4});
    sayings.add(world.rank(), message_of([&] { pipeline.step({x}, {.target = x}); }));
  });
  EXPECT_THAT(sayings.of(1), HasSubstr("waited 300 ms for the activation of microbatch 1 from stage 0 to stage 1 from "
                                       "rank 0"));
  EXPECT_THAT(sayings.of(1), HasSubstr("1F1"));
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

}  // namespace
}  // namespace stagecraft
