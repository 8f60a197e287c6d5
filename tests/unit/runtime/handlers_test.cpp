// What a user can run instead of actions or beside them: handlers, timelines, profilers.

#include "pipeline_testing.h"
#include "stagecraft/stage/packing.h"

namespace stagecraft {
namespace {

using namespace pipeline_testing;

TEST(Pipeline, AReplacedSendLeavesNothingForTheNextStep) {
  run_ranks(quick(2), [](World& world) {
    Pipeline pipeline(world, {stage_for(world)}, {.schedule = "GPipe", .microbatches = 2, .loss = mean_square});
    const Tensor x = at::randn({4, 4});
    bool replaces = true;
    const Tensor made_up = at::randn({2, 4});
    pipeline.on(ActionKind::kSendForward, [&](const ActionContext& action) {
      if (!replaces) return action.run();
      const Action& own = action.action();
      world.transport().send(RankId(1), {MessageKind::kForward, StageId(0), StageId(1), own.microbatch()},
                             pack({ValueList{made_up.detach().set_requires_grad(true)}, std::int64_t{2}}));
    });
    pipeline.step({x}, {.target = x});
    replaces = false;
    const Tensor y = at::randn({4, 4});
    const StepResult result = pipeline.step({y}, {.target = x, .return_outputs = true});
    const StepResult expected = pipeline.eval({y}, {.target = x});
    if (world.is_last()) {
      EXPECT_TRUE(result.output.tensor().equal(expected.output.tensor()));
    }
  });
}

TEST(Pipeline, HandlersReplaceOrWrapActions) {
  run_ranks(quick(2), [](World& world) {
    Pipeline pipeline(world, {stage_for(world)}, {.microbatches = 2, .loss = mean_square});
    std::vector<std::string> seen;
    for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward, ActionKind::kUnshard,
                                  ActionKind::kReshard, ActionKind::kReduceGrad}) {
      pipeline.on(kind, [&](const ActionContext& context) {
        EXPECT_EQ(context.stage().index(), StageId(world.rank().value));
        seen.push_back(to_text(context.action()));
        context.run();
      });
    }
    const Tensor x = at::randn({2, 4});
    pipeline.step({x}, {.target = x});
    const std::string s = std::to_string(world.rank().value);
    EXPECT_EQ(seen.front(), s + "UNSHARD");
    EXPECT_EQ(seen.back(), s + "RESHARD");
    EXPECT_NE(std::find(seen.begin(), seen.end(), s + "REDUCE_GRAD"), seen.end());
    EXPECT_NE(std::find(seen.begin(), seen.end(), s + "B1"), seen.end());
  });
}

TEST(Pipeline, AnOverlapHasAHandlerOfItsOwn) {
  run_ranks(quick(2), [](World& world) {
    std::vector<Stage> stages;
    for (const StageId stage : stages_here(world, "DualPipeV")) stages.push_back(make_stage(stage.value, layer()));
    Pipeline pipeline(world, std::move(stages), {.schedule = "DualPipeV", .microbatches = 6, .loss = mean_square});
    int overlaps = 0;
    pipeline.on(ActionKind::kOverlap, [&](const ActionContext& context) {
      EXPECT_TRUE(context.action().is_overlap());
      context.run();
      ++overlaps;
    });
    const Tensor x = at::randn({6, 4});
    pipeline.step({x}, {.target = x});
    const Row& row = pipeline.schedule().rows[world.rank().index()];
    EXPECT_EQ(overlaps,
              std::count_if(row.begin(), row.end(), [](const Action& action) { return action.is_overlap(); }));
    EXPECT_GT(overlaps, 0);
    for (const Tensor& parameter : pipeline.parameters()) EXPECT_TRUE(parameter.grad().defined());
    pipeline.on(ActionKind::kOverlap, [](const ActionContext&) { throw std::runtime_error("not these"); });
    EXPECT_THAT(message_of([&] { pipeline.step({x}, {.target = x}); }), HasSubstr("not these"));
  });
}

TEST(Pipeline, TimelineTellsWhatHappened) {
  run_ranks(quick(2), [](World& world) {
    Pipeline pipeline(world, {stage_for(world)}, {.microbatches = 2, .loss = mean_square});
    const Tensor x = at::randn({2, 4});
    pipeline.step({x}, {.target = x});
    EXPECT_TRUE(pipeline.timeline().empty());
    pipeline.record_timeline(true);
    pipeline.step({x}, {.target = x});
    const Row& row = pipeline.schedule().rows[world.rank().index()];
    ASSERT_EQ(pipeline.timeline().size(), row.size());
    double before = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const Span& span = pipeline.timeline()[i];
      EXPECT_EQ(span.action, row[i]);
      EXPECT_LE(before, span.start);
      EXPECT_LE(span.start + span.waited, span.end + 1e-9);
      EXPECT_EQ(span.bytes, is_send(row[i].kind()) ? 16 : 0);
      before = span.end;
    }
  });
}

TEST(Pipeline, AProfilerSeesARangePerAction) {
  run_ranks(quick(1), [](World& world) {
    Pipeline pipeline(world, {make_stage(0, layer())}, {.schedule = "ZB-H1", .microbatches = 2, .loss = mean_square});
    static thread_local std::vector<std::string> seen;
    const auto handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& range) -> std::unique_ptr<at::ObserverContext> {
          seen.emplace_back(range.name());
          return nullptr;
        }).scopes({at::RecordScope::USER_SCOPE}));
    const Tensor x = at::randn({2, 4});
    pipeline.step({x}, {.target = x});
    at::removeCallback(handle);
    std::vector<std::string> expected;
    for (const Action& action : pipeline.schedule().rows[0]) expected.push_back(to_text(action));
    EXPECT_EQ(seen, expected);
  });
}

TEST(Pipeline, NothingOfAFinishedStepStaysAlive) {
  run_ranks(quick(1), [](World& world) {
    std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> made;
    const auto forward = [&](const StageCall& call) -> Value {
      const Tensor y = call.tensor(0) * 2;
      made.emplace_back(y.getIntrusivePtr());
      return y;
    };
    Pipeline pipeline(world, {Stage(0, forward, {})},
                      {.schedule = "ZB-H1",
                       .microbatches = 3,
                       .loss = [](const Value& out, const Value&, const ValueDict&) { return out.tensor().sum(); }});
    c10::weak_intrusive_ptr<at::TensorImpl> input(at::empty({0}).getIntrusivePtr());
    {
      const Tensor x = at::randn({3, 4}).requires_grad_(true);
      input = c10::weak_intrusive_ptr<at::TensorImpl>(x.getIntrusivePtr());
      pipeline.step({x}, {.target = x});
    }
    EXPECT_TRUE(input.expired());
    for (const auto& tensor : made) EXPECT_TRUE(tensor.expired());
  });
}

}  // namespace
}  // namespace stagecraft
