// Stages that compute an OVERLAP_F_B by themselves.

#include <algorithm>
#include <optional>

#include "pipeline_testing.h"

namespace stagecraft::overlap_testing {
namespace {

using namespace pipeline_testing;

constexpr int kMicrobatches = 8;

/// How a stage computes its overlaps.
enum class Way {
  kApart,          // not by itself
  kBackwardFirst,  // calls the backward that it is given, then its forward
  kForwardFirst,
  kByHand,  // runs the backward from the outputs that its forward has kept
  kNever,   // forgets the backward
  kTwice,
};

struct Layer : torch::nn::Module {
  Layer() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    std::optional<c10::impl::ExcludeDispatchKeyGuard> no_autocast;
    if (is_exact) no_autocast.emplace(c10::autocast_dispatch_keyset);
    return at::dropout(at::tanh(linear(x.to(at::kFloat))), 0.25, is_training());
  }
  torch::nn::Linear linear;
  bool is_exact = false;  // without autocast, so that its backward must be without it too
};

struct Result {
  std::vector<double> losses;
  std::vector<Tensor> gradients;
  int calls = 0;     // of the stages' own function, by the first rank
  int overlaps = 0;  // in that rank's schedule
};

struct Training {
  Way way = Way::kApart;
  std::function<void(PipelineOptions&)> options = [](PipelineOptions&) {};
  std::function<void(Pipeline&)> prepare = [](Pipeline&) {};
  bool is_exact = false;
};

/// Two steps of DualPipeV on two ranks; what the first rank has.
Result train(const Training& run) {
  torch::manual_seed(3);
  std::vector<std::shared_ptr<Layer>> layers;
  for (int s = 0; s < 4; ++s) {
    layers.push_back(std::make_shared<Layer>());
    layers.back()->is_exact = run.is_exact;
  }
  const Tensor x = at::randn({2 * kMicrobatches, 4});
  const Tensor y = at::randn({2 * kMicrobatches, 4});
  Result result;
  run_ranks(quick(2), [&](World& world) {
    int calls = 0;
    std::map<std::pair<int, int>, Tensor> kept;  // outputs by stage and microbatch
    std::vector<Stage> stages;
    for (const StageId stage : stages_here(world, "DualPipeV")) {
      const auto& layer = layers[stage.index()];
      const auto compute = [&, layer](const StageCall& call) -> Value {
        const Tensor output = layer->forward(call.tensor(0));
        if (run.way == Way::kByHand) kept[{call.stage.value, call.microbatch.value}] = output;
        return output;
      };
      StageOptions options;
      if (run.way != Way::kApart) {
        options.overlapped = [&, compute](const OverlapCall& both) -> Value {
          ++calls;
          EXPECT_EQ(whereabouts().microbatch, both.forward.microbatch);
          if (run.way == Way::kNever) return compute(both.forward);
          if (run.way == Way::kForwardFirst) {
            Value output = compute(both.forward);
            both.backward();
            return output;
          }
          const bool is_last = both.backward_stage.value == 3;
          if (run.way == Way::kByHand && !is_last) {  // the last one ends in a loss
            const Tensor output = kept.at({both.backward_stage.value, both.backward_microbatch.value});
            torch::autograd::backward({output}, {both.gradients.at(0)});
          } else {
            both.backward();
          }
          if (run.way == Way::kTwice) both.backward();
          return compute(both.forward);
        };
      }
      stages.push_back(make_stage(stage.value, layer, compute, options));
    }
    PipelineOptions options{
        .schedule = "DualPipeV", .microbatches = kMicrobatches, .loss = mean_square, .broadcast_loss = true, .seed = 5};
    run.options(options);
    Pipeline pipeline(world, std::move(stages), options);
    run.prepare(pipeline);
    std::vector<double> losses;
    for (int step = 0; step < 2; ++step) losses.push_back(pipeline.step({x}, {.target = y}).loss());
    pipeline.eval({x}, {.target = y});
    if (!world.is_first()) return;
    const Row& row = pipeline.schedule().rows[0];
    const auto is_overlap = [](const Action& action) { return action.is_overlap(); };
    result = {losses, {}, calls, static_cast<int>(std::count_if(row.begin(), row.end(), is_overlap))};
  });
  for (const auto& layer : layers) {
    for (const Tensor& parameter : layer->parameters()) result.gradients.push_back(parameter.grad());
  }
  return result;
}

void expect_same_bits(const Result& got, const Result& expected) {
  EXPECT_EQ(got.losses, expected.losses);
  ASSERT_EQ(got.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < got.gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(got.gradients[i], expected.gradients[i])) << i;
  }
}

TEST(Overlap, OfAStagesOwnGivesTheSameBits) {
  const Result expected = train({});
  ASSERT_GT(expected.overlaps, 0);
  EXPECT_EQ(expected.calls, 0);
  for (const Way way : {Way::kBackwardFirst, Way::kForwardFirst, Way::kByHand}) {
    SCOPED_TRACE(static_cast<int>(way));
    const Result own = train({.way = way});
    expect_same_bits(own, expected);
    EXPECT_EQ(own.calls, 2 * own.overlaps);
  }
}

TEST(Overlap, OfAStagesOwnComputesItsBackwardWithoutAutocast) {
  const auto autocast = [](PipelineOptions& options) { options.precision.autocast = at::kBFloat16; };
  expect_same_bits(train({.way = Way::kBackwardFirst, .options = autocast, .is_exact = true}),
                   train({.way = Way::kApart, .options = autocast, .is_exact = true}));
}

TEST(Overlap, IsRecordedAsItsHalves) {
  const Training run{.way = Way::kForwardFirst, .prepare = [](Pipeline& pipeline) { pipeline.record_timeline(true); }};
  EXPECT_GT(train(run).calls, 0);
  run_ranks(quick(1), [](World& world) {
    std::vector<Stage> stages;
    for (int s = 0; s < 2; ++s) {
      auto layer = std::make_shared<Layer>();
      const auto compute = [layer](const StageCall& call) -> Value { return layer->forward(call.tensor(0)); };
      stages.push_back(make_stage(s, layer, compute, {.overlapped = [compute](const OverlapCall& both) {
                                    both.backward();
                                    return compute(both.forward);
                                  }}));
    }
    Pipeline pipeline(world, std::move(stages), {.schedule = "DualPipeV", .microbatches = 4, .loss = mean_square});
    pipeline.record_timeline(true);
    const Tensor x = at::randn({4, 4});
    pipeline.step({x}, {.target = x});
    std::vector<Action> expected;
    for (const Action& slot : pipeline.schedule().rows[0]) {
      for_each_part(slot, [&](const Action& action) { expected.push_back(action); });
    }
    std::vector<Action> recorded;
    for (const Span& span : pipeline.timeline()) recorded.push_back(span.action);
    EXPECT_EQ(recorded, expected);
  });
}

TEST(Overlap, OfAStagesOwnIsNotCalledWhereAHandlerWantsTheHalves) {
  int forwards = 0;
  const auto prepare = [&](Pipeline& pipeline) {
    if (!pipeline.has_first_stage()) return;
    pipeline.on(ActionKind::kForward, [&](const ActionContext& context) {
      ++forwards;
      context.run();
    });
  };
  const Result handled = train({.way = Way::kBackwardFirst, .prepare = prepare});
  EXPECT_EQ(handled.calls, 0);
  EXPECT_EQ(forwards, (2 + 1) * 2 * kMicrobatches);  // two steps and an evaluation
  expect_same_bits(handled, train({}));
}

TEST(Overlap, SaysWhatIsWrong) {
  EXPECT_THAT(message_of([] { train({.way = Way::kNever}); }), HasSubstr("call the backward that was given"));
  EXPECT_THAT(message_of([] { train({.way = Way::kTwice}); }), HasSubstr("run twice"));
  const auto recompute = [](PipelineOptions& options) { options.recompute = Recompute::stage(); };
  EXPECT_THAT(message_of([&] { train({.way = Way::kBackwardFirst, .options = recompute}); }),
              HasSubstr("leave out one of them"));
}

}  // namespace
}  // namespace stagecraft::overlap_testing
