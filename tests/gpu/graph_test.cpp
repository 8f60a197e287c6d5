// A step that is replayed as a graph gives the bits of the eager one: losses, outputs, gradients, buffers, and the
// parameters after many updates. Needs a GPU: `make test-gpu`.

#include <atomic>

#include "support/schedule_names.h"
#include "training.h"

namespace stagecraft::equivalence {
namespace {

class GraphSteps : public OnGpu {};
class Graphs : public GraphSteps, public testing::WithParamInterface<std::string> {};

TEST_P(Graphs, GiveTheBitsOfTheEagerStep) {
  const Generator& generator = find_generator(GetParam());
  const int stages = std::clamp(4, generator.min_stages_per_rank, generator.max_stages_per_rank);
  for (const Model& each : models()) {
    SCOPED_TRACE(each.name);
    const bool is_long = each.name == "Dropout" || each.name == "Skip";
    const int steps = is_long ? 20 : 5;
    const CapturedSteps captured = compare({.model = each, .schedule = GetParam(), .stages = stages, .steps = steps});
    EXPECT_EQ(captured.graphs, 1) << captured.reason;
    EXPECT_EQ(captured.replayed, static_cast<std::uint64_t>(steps - 1)) << captured.reason;
    EXPECT_GT(captured.bytes, 0);
  }
}

TEST_P(Graphs, InPiecesBetweenMessagesGiveTheBitsOfTheEagerStep) {
  const Generator& generator = find_generator(GetParam());
  for (const int ranks : {2, 4}) {
    const int stages = ranks * std::clamp(2, generator.min_stages_per_rank, generator.max_stages_per_rank);
    for (const char* name : {"Dropout", "Skip", "SeveralOutputs"}) {
      SCOPED_TRACE(std::string(name) + " on " + std::to_string(ranks) + " ranks");
      Training run{.model = model(name), .schedule = GetParam(), .stages = stages, .ranks = ranks, .steps = 6};
      const CapturedSteps captured = compare(run);
      EXPECT_EQ(captured.graphs, 1) << captured.reason;
      EXPECT_EQ(captured.replayed, 5U) << captured.reason;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, Graphs, testing::ValuesIn(training_schedules()), test_name);

TEST_F(GraphSteps, OfPlannedSchedules) {
  for (const int microbatches : {2, 4, 6}) {
    PlanRequest request;
    request.microbatches = microbatches;
    request.stages_per_rank = 2;
    request.placement = PlacementChoice::kLoop;
    request.time_budget = 0.2;
    const PlanResult planned = plan(request);
    Training run{
        .model = model("Dropout"), .stages = planned.schedule.stages(), .microbatches = microbatches, .steps = 20};
    run.options = [&](PipelineOptions& options) { options.schedule = planned.schedule; };
    EXPECT_EQ(compare(run).replayed, 19U);
  }
}

TEST_F(GraphSteps, WithRecompute) {
  for (const char* name : {"Dropout", "BatchNorm"}) {
    Training run{.model = model(name)};
    run.options = [](PipelineOptions& options) { options.recompute = Recompute::stage(); };
    EXPECT_EQ(compare(run).replayed, 5U);
  }
}

TEST_F(GraphSteps, OfSeveralShapesHaveAGraphEach) {
  Training run{.model = model("Dropout"), .steps = 14};
  run.rows = [](int step) { return step % 3 == 0 ? 24 : step % 3 == 1 ? 23 : 17; };
  const CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.graphs, 3);
  EXPECT_EQ(captured.replayed, 11U);
}

TEST_F(GraphSteps, AddToGradientsThatExist) {
  Training run{.model = model("Dropout"), .steps = 15};
  run.zero = [](int step, auto& optimizer) {
    if (step % 3 == 2) optimizer.zero_grad(/*set_to_none=*/step < 9);
  };
  EXPECT_GE(compare(run).replayed, 11U);
  run.options = [](PipelineOptions& options) { options.accumulate = 3; };
  EXPECT_GE(compare(run).replayed, 11U);
}

TEST_F(GraphSteps, KeepGradientTensorsOfTheCaller) {
  Training run{.model = model("Mlp"), .steps = 8};
  std::vector<at::Tensor> own;
  run.before = [&](int step, Pipeline& pipeline, const auto&) {
    if (step == 0) own.clear();
    for (const at::Tensor& parameter : pipeline.parameters()) {
      parameter.mutable_grad() = at::full_like(parameter, 0.5).detach();
      own.push_back(parameter.grad());
    }
  };
  run.after = [&](int, Pipeline& pipeline, const auto&) {
    EXPECT_TRUE(pipeline.parameters().back().grad().is_same(own.back()));
  };
  EXPECT_EQ(compare(run).replayed, 7U);
}

TEST_F(GraphSteps, NeverOverwriteAGradientThatSomebodyKeeps) {
  std::vector<at::Tensor> kept;
  std::vector<at::Tensor> copies;
  Training run{.model = model("Dropout"), .steps = 8};
  run.after = [&](int step, Pipeline& pipeline, const auto&) {
    if (step == 0) {
      kept.clear();
      copies.clear();
    }
    const at::Tensor gradient = pipeline.parameters().front().grad();
    kept.push_back(step % 2 == 0 ? gradient : gradient.view(-1));
    copies.push_back(gradient.clone());
  };
  const CapturedSteps captured = compare(run);
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], copies[i].view_as(kept[i]))) << i;
  EXPECT_THAT(captured.reason, testing::HasSubstr("clone what you keep"));
}

/// Graphs share memory: what one has freed may be a gradient of another.
TEST_F(GraphSteps, OfOneShapeNeverOverwriteAKeptGradientOfAnother) {
  for (const int every : {2, 3}) {
    SCOPED_TRACE(every);
    std::vector<at::Tensor> kept;
    std::vector<at::Tensor> copies;
    Training run{.model = model("Dropout"), .steps = 24};
    run.rows = [every](int step) { return step % every == 0 ? 24 : 240; };
    run.after = [&](int step, Pipeline& pipeline, const auto&) {
      if (step == 0) {
        kept.clear();
        copies.clear();
      }
      if (step < 8) return;
      for (const at::Tensor& parameter : pipeline.parameters()) {
        kept.push_back(parameter.grad());
        copies.push_back(parameter.grad().clone());
      }
    };
    EXPECT_GT(compare(run).replayed, 3U);
    for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], copies[i])) << i;
  }
}

/// Steps that add to gradients: of a window that is over, and of one that goes on with others.
TEST_F(GraphSteps, ThatAddToGradientsNeverOverwriteKeptOnes) {
  for (const bool replaces : {false, true}) {
    SCOPED_TRACE(replaces);
    std::vector<at::Tensor> kept;
    std::vector<at::Tensor> copies;
    Training run{.model = model("Dropout"), .steps = 24};
    run.options = [](PipelineOptions& options) { options.accumulate = 2; };
    run.zero = [](int step, auto& optimizer) {
      if (step % 2 == 1) optimizer.zero_grad();
    };
    run.after = [&](int step, Pipeline& pipeline, const auto&) {
      if (step == 0) {
        kept.clear();
        copies.clear();
      }
      if (step < 6 || (step % 2 == 0) != replaces) return;
      for (const at::Tensor& parameter : pipeline.parameters()) {
        kept.push_back(parameter.grad());
        copies.push_back(parameter.grad().clone());
        if (replaces) parameter.mutable_grad() = parameter.grad() * 0.5;
      }
    };
    EXPECT_GT(compare(run).replayed, 3U);
    for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], copies[i])) << i;
  }
}

/// Gradients of several windows are added up, of parameters that have masters, and of tied ones.
TEST_F(GraphSteps, OfWindowsThatAreNotZeroed) {
  Training run{.model = model("Dropout"), .steps = 24};
  run.zero = [](int step, auto& optimizer) {
    if (step % 4 == 3) optimizer.zero_grad();
  };
  for (const bool masters : {false, true}) {
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(std::to_string(masters) + std::to_string(tied));
      run.options = [&](PipelineOptions& options) {
        options.accumulate = 2;
        if (masters) options.precision.compute = at::kBFloat16;
        if (tied) options.ties = {{"linear.weight", {StageId(0), StageId(3)}}};
      };
      EXPECT_GT(compare(run).replayed, 12U);
    }
  }
}

/// Its backward reads a number back.
struct LooksBack : torch::autograd::Function<LooksBack> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] * (gradients[0].sum().item<double>() > 0 ? 2.0 : 3.0)};
  }
};

/// The gradients of later layers are there when the capture of a backward fails.
TEST_F(GraphSteps, WhoseBackwardCannotBeCapturedStayEager) {
  struct Looking2 : detail::Linear {
    Looking2() : second(register_module("second", torch::nn::Linear(kWidth, kWidth))) {}
    ValueList run(const ValueList& in) override { return {second(LooksBack::apply(at::tanh(linear(in[0].tensor()))))}; }
    torch::nn::Linear second;
  };
  for (const bool masters : {false, true}) {
    SCOPED_TRACE(masters);
    Training run{.model = {.name = "LooksBack", .make = [](int, int) { return std::make_shared<Looking2>(); }}};
    if (masters) run.options = [](PipelineOptions& options) { options.precision.compute = at::kBFloat16; };
    const CapturedSteps captured = compare(run);
    EXPECT_EQ(captured.replayed, 0U);
    EXPECT_THAT(captured.reason, testing::HasSubstr("cannot be captured"));
  }
}

TEST_F(GraphSteps, WithTiesMastersAndScaledLosses) {
  Training run{.model = model("Dropout"), .steps = 8};
  run.options = [](PipelineOptions& options) { options.ties = {{"linear.weight", {StageId(0), StageId(3)}}}; };
  EXPECT_EQ(compare(run).replayed, 7U);
  run.options = [](PipelineOptions& options) { options.precision.compute = at::kBFloat16; };
  EXPECT_EQ(compare(run).replayed, 7U);
  run.options = [](PipelineOptions& options) { options.precision.autocast = at::kBFloat16; };
  EXPECT_EQ(compare(run).replayed, 7U);
  run.options = [](PipelineOptions& options) {
    options.precision = {.compute = at::kHalf, .scaling = LossScaling{.initial = 8, .growth_interval = 2}};
  };
  EXPECT_EQ(compare(run).replayed, 7U);
}

TEST_F(GraphSteps, WithWeightsOfLossesThatChange) {
  Training run{.model = model("Mlp"), .steps = 10};
  run.options = [](PipelineOptions& options) {
    options.loss_weight = [](const Value& target) { return target.tensor().abs().sum().item<double>(); };
  };
  EXPECT_EQ(compare(run).replayed, 9U);
  run.options = [](PipelineOptions& options) {  // sometimes a microbatch does not count at all
    options.loss_weight = [](const Value& target) { return target.tensor().sum().item<double>() > 0 ? 1.0 : 0.0; };
  };
  EXPECT_GT(compare(run).replayed, 0U);
}

TEST_F(GraphSteps, WithClippingEvaluationAndOtherModes) {
  Training run{.model = model("Dropout"), .steps = 12};
  run.after = [](int step, Pipeline& pipeline, const std::vector<PiecePtr>& pieces) {
    pipeline.clip_gradient_norm(0.1);
    if (step % 4 == 1) pipeline.eval({at::ones({24, kWidth}, at::TensorOptions(kGpu))});
    if (step == 5) pieces[1]->eval();
    if (step == 8) pieces[1]->train();
    if (step == 9) pipeline.set_steps(1000);
  };
  const CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.graphs, 2);
  EXPECT_EQ(captured.replayed, 10U);
}

TEST_F(GraphSteps, WhoseParametersHaveMovedAreCapturedAnew) {
  Training run{.model = model("Mlp"), .steps = 8};
  run.before = [](int step, Pipeline& pipeline, const auto&) {
    if (step != 4) return;
    for (at::Tensor parameter : pipeline.parameters()) parameter.set_data(parameter.detach().clone());
  };
  EXPECT_EQ(compare(run).replayed, 6U);
}

/// Throws in the forward of one step.
struct Failing : detail::Linear {
  ValueList run(const ValueList& in) override {
    if ((fails && *fails) || (fails_elsewhere && *fails_elsewhere)) throw std::runtime_error("on purpose");
    return detail::Linear::run(in);
  }
  std::shared_ptr<bool> fails;
  std::shared_ptr<std::atomic<bool>> fails_elsewhere;
};

TEST_F(GraphSteps, ThatFailLeaveNothingBehind) {
  const auto fails = std::make_shared<bool>(false);
  Training run{.model = {.name = "Failing", .make = [&](int, int) {
                           auto piece = std::make_shared<Failing>();
                           piece->fails = fails;
                           return piece;
                         }}};
  run.steps = 10;
  run.before = [&](int step, Pipeline&, const auto&) { *fails = step == 1 || step == 2; };
  const CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.graphs, 1) << captured.reason;
  EXPECT_EQ(captured.replayed, 7U);
}

/// Reads a number back to the host, which no graph can do.
struct Looking : detail::Linear {
  ValueList run(const ValueList& in) override {
    const double largest = in[0].tensor().abs().max().item<double>();
    return {at::tanh(linear(in[0].tensor())) * (1 / (1 + largest))};
  }
};
/// Draws on the CPU, which a graph would freeze.
struct HostRandom : detail::Linear {
  ValueList run(const ValueList& in) override {
    return {at::tanh(linear(in[0].tensor())) * at::rand({}).item<double>()};
  }
};
/// Draws in other ways than dropout.
struct Noisy : detail::Linear {
  ValueList run(const ValueList& in) override {
    const at::Tensor x = at::tanh(linear(in[0].tensor()));
    return {x + at::randn_like(x) * 0.1 + at::rand(x.sizes(), x.options()) + at::bernoulli(at::sigmoid(x)).detach()};
  }
};

TEST_F(GraphSteps, ThatCannotBeCapturedStayEager) {
  Training run{.model = {.name = "Looking", .make = [](int, int) { return std::make_shared<Looking>(); }}};
  CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.replayed, 0U);
  EXPECT_THAT(captured.reason, testing::HasSubstr("cannot be captured"));
  run.model.make = [](int, int) { return std::make_shared<HostRandom>(); };
  captured = compare(run);
  EXPECT_EQ(captured.replayed, 0U);
  EXPECT_THAT(captured.reason, testing::HasSubstr(kGpu.is_cuda() ? "on the CPU" : "cannot be captured"));
  // The device works as before.
  EXPECT_EQ(compare({.model = model("Dropout")}).replayed, 5U);
}

/// Only one of the ranks finds out; no step fails.
TEST_F(GraphSteps, OfSeveralRanksThatOneCannotCaptureStayEager) {
  for (int culprit = 0; culprit < 4; ++culprit) {
    SCOPED_TRACE("stage " + std::to_string(culprit));
    Training run{.model = {.name = "Looking",
                           .make = [culprit](int stage, int) -> PiecePtr {
                             if (stage == culprit) return std::make_shared<Looking>();
                             return std::make_shared<detail::Dropout>();
                           }},
                 .schedule = "1F1B",
                 .ranks = 4};
    const CapturedSteps captured = compare(run);
    EXPECT_EQ(captured.replayed, 0U);
    EXPECT_EQ(captured.graphs, 0) << "graphs of the others are dropped";
    EXPECT_THAT(captured.reason, testing::HasSubstr("cannot be captured"));
    if (culprit != 3) {
      EXPECT_THAT(captured.reason, testing::HasSubstr("rank " + std::to_string(culprit)));
    }
  }
}

/// A number of the host goes from stage to stage, and may change: another one than the first step's is no step to
/// capture.
TEST_F(GraphSteps, WithNumbersInMessagesThatChangeStayEager) {
  struct Counted : detail::Linear {
    ValueList run(const ValueList& in) override {
      const at::Tensor x = at::tanh(linear(in[0].tensor()));
      if (in.size() > 1) return {x * in[1].real()};
      return {x, number->load()};
    }
    std::shared_ptr<std::atomic<double>> number;
  };
  const auto number = std::make_shared<std::atomic<double>>(0.5);
  Training run{.model = {.name = "Counted",
                         .make =
                             [&](int, int) {
                               auto piece = std::make_shared<Counted>();
                               piece->number = number;
                               return piece;
                             }},
               .schedule = "1F1B",
               .stages = 2,
               .ranks = 2,
               .steps = 8};
  EXPECT_EQ(compare(run).replayed, 7U);
  run.before = [&](int step, Pipeline& pipeline, const auto&) {
    if (pipeline.has_first_stage()) number->store(0.5 + step);
  };
  const CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.replayed, 0U);
  EXPECT_THAT(captured.reason, testing::HasSubstr("another shape, type or number"));
}

/// Writes to memory and frees it, before it draws for the first time.
struct Scribbling : detail::Linear {
  ValueList run(const ValueList& in) override {
    at::Tensor x = linear(in[0].tensor());
    for (const std::int64_t size : {1, 64, 1 << 10, 1 << 13, 1 << 16, 1 << 20}) {
      x = x + (at::full({size}, 7, x.options().dtype(at::kLong)).sum() * 0).to(x.scalar_type());
    }
    return {at::dropout(at::tanh(x), 0.3, is_training())};
  }
};

/// What the host sets before a replay, the replay must not overwrite.
TEST_F(GraphSteps, DrawAfterMemoryWasUsed) {
  Training run{.model = {.name = "Scribbling", .make = [](int, int) { return std::make_shared<Scribbling>(); }}};
  EXPECT_EQ(compare(run).replayed, 5U);
  run.schedule = "1F1B";
  run.ranks = 4;
  EXPECT_EQ(compare(run).replayed, 5U);
}

TEST_F(GraphSteps, DrawWhatEagerStepsDraw) {
  Training run{.model = {.name = "Noisy", .make = [](int, int) { return std::make_shared<Noisy>(); }}, .steps = 20};
  EXPECT_EQ(compare(run).replayed, 19U);
}

TEST_F(GraphSteps, AreEagerWithHandlers) {
  Training run{.model = model("Mlp"), .steps = 8};
  run.before = [](int step, Pipeline& pipeline, const auto&) {
    if (step == 6) pipeline.on(ActionKind::kForward, [](const ActionContext& context) { context.run(); });
  };
  run.after = [](int step, Pipeline& pipeline, const auto&) {
    if (step == 6) {
      EXPECT_TRUE(pipeline.captured().reason.empty() ||
                  pipeline.captured().reason.find("handler") != std::string::npos);
    }
  };
  EXPECT_EQ(compare(run).replayed, 5U);
}

TEST_F(GraphSteps, OfSeveralRanksFollowShapesThatOthersKnow) {
  Training run{.model = model("Dropout"), .schedule = "1F1B", .ranks = 4, .steps = 12};
  run.rows = [](int step) { return step % 3 == 0 ? 24 : 23; };
  const CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.graphs, 2);
  EXPECT_EQ(captured.replayed, 10U);
}

TEST_F(GraphSteps, OfSeveralRanksFailTogetherAndGoOn) {
  const auto fails = std::make_shared<std::atomic<bool>>(false);
  Training run{.model = {.name = "Failing", .make = [&](int stage, int) {
                           auto piece = std::make_shared<Failing>();
                           if (stage == 1) piece->fails_elsewhere = fails;
                           return piece;
                         }}};
  run.schedule = "1F1B";
  run.stages = run.ranks = 2;
  run.steps = 8;
  run.before = [&](int step, Pipeline& pipeline, const auto&) {
    if (pipeline.has_last_stage()) *fails = step == 1;
  };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_GT(compare(run).replayed, 4U);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15)) << "a rank waited for its timeout";
}

/// What a row of tokens is often cut into: all but the last, all but the first.
TEST_F(GraphSteps, TakeViewsOfLargerTensors) {
  torch::manual_seed(5);
  const at::Tensor whole = at::randn({24, kWidth + 1}, at::TensorOptions(kGpu));
  const auto losses = [&](bool graph, CapturedSteps& captured, const at::Tensor& input) {
    torch::manual_seed(6);
    const auto linear = std::make_shared<torch::nn::LinearImpl>(kWidth, kWidth);
    linear->to(kGpu);
    synchronize();
    std::vector<at::Tensor> all;
    run_ranks({.ranks = 1, .device = [](RankId) { return kGpu; }}, [&](World& world) {
      Pipeline pipeline(world,
                        {make_stage(0, linear, [&](const StageCall& call) { return linear->forward(call.tensor(0)); })},
                        {.schedule = "GPipe",
                         .microbatches = 4,
                         .loss = [](const Value& output, const Value& target,
                                    const ValueDict&) { return at::mse_loss(output.tensor(), target.tensor()); },
                         .graph = graph});
      for (int step = 0; step < 4; ++step) {
        linear->zero_grad();
        all.push_back(at::stack(pipeline.step({input}, {.target = whole.narrow(1, 1, kWidth)}).losses).clone());
      }
      captured = pipeline.captured();
    });
    synchronize();
    return all;
  };
  CapturedSteps captured;
  const at::Tensor part = whole.narrow(1, 0, kWidth);
  const std::vector<at::Tensor> eager = losses(false, captured, part);
  const std::vector<at::Tensor> graph = losses(true, captured, part);
  EXPECT_EQ(captured.replayed, 3U) << captured.reason;
  for (std::size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(are_same_bits(graph[i], eager[i]));
  losses(true, captured, at::randn({24, 1}, at::TensorOptions(kGpu)).expand({24, kWidth}));
  EXPECT_EQ(captured.replayed, 0U);
  EXPECT_THAT(captured.reason, testing::HasSubstr("is expanded"));
  losses(true, captured, at::randn({24, 100}, at::TensorOptions(kGpu)).narrow(1, 0, kWidth));
  EXPECT_EQ(captured.replayed, 0U);
  EXPECT_THAT(captured.reason, testing::HasSubstr("spread over the memory"));
}

TEST_F(GraphSteps, TakeInputsFromTheDeviceAlone) {
  Training run{.model = model("Mlp")};
  run.model.input = [](std::int64_t rows) { return at::randn({rows, kWidth}); };
  EXPECT_EQ(compare(run).replayed, 5U);
}

}  // namespace
}  // namespace stagecraft::equivalence
