// Microbatches of a captured step side by side: faster where kernels are small, and always the bits of the eager step.
// Needs a GPU: `make test-gpu`.

#include "bench/narrow_kernels.h"
#include "stagecraft/core/measurement.h"
#include "training.h"

namespace stagecraft::equivalence {
namespace {

class Lanes : public OnGpu {};

/// Takes long enough that two lanes without an order would meet: a chain of narrow kernels that changes nothing.
at::Tensor slowly(const at::Tensor& x, int passes) {
  if (!x.is_cuda()) return x.clone();  // a replay has another order each time
  const at::Tensor idle = bench::narrow_passes(bench::narrow_input(4, x.device()).zero_(), passes);
  return x + 0 * idle.sum().to(x.scalar_type());
}

/// Its output depends on what it has seen so far, which it keeps in a buffer.
struct Remembering : Piece {
  explicit Remembering(int stage)
      : passes(1 + stage % 3),
        linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))),
        seen(register_buffer("seen", at::ones({kWidth}))) {}
  ValueList run(const ValueList& in) override {
    const at::Tensor x = slowly(linear(in[0].tensor()), passes);
    const at::Tensor y = at::tanh(x * seen.clone());
    const at::NoGradGuard no_graph;
    seen.mul_(0.5).add_(slowly(x.detach().mean(0), 4 - passes));
    return {y};
  }
  int passes;
  torch::nn::Linear linear;
  at::Tensor seen;
};

TEST_F(Lanes, KeepTheOrderOfAStagesState) {
  for (const char* schedule : {"Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS"}) {
    SCOPED_TRACE(schedule);
    Training run{.model = {.name = "Remembering", .make = [](int s, int) { return std::make_shared<Remembering>(s); }},
                 .schedule = schedule,
                 .microbatches = 6};
    const CapturedSteps captured = compare(run);
    EXPECT_EQ(captured.replayed, 5U) << captured.reason;
    EXPECT_GT(captured.lanes, 1);
  }
}

/// One layer in all stages.
struct Shared : Piece {
  Shared(int stage, const torch::nn::Linear& of_all)
      : passes(1 + stage % 3),
        all(register_module("all", of_all)),
        own(register_module("own", torch::nn::Linear(kWidth, kWidth))) {}
  ValueList run(const ValueList& in) override { return {at::tanh(slowly(own(all(in[0].tensor())), passes))}; }
  int passes;
  torch::nn::Linear all, own;
};

TEST_F(Lanes, KeepTheOrderOfParametersThatStagesShare) {
  for (const int owners : {4, 2}) {
    torch::nn::Linear one = nullptr;
    Training run{.model = {.name = "Shared",
                           .make = [&](int stage, int stages) -> PiecePtr {
                             if (stage % owners == 0) one = torch::nn::Linear(kWidth, kWidth);
                             (void)stages;
                             return std::make_shared<Shared>(stage, one);
                           }},
                 .schedule = "InterleavedZeroBubble"};
    const CapturedSteps captured = compare(run);
    EXPECT_EQ(captured.replayed, 5U) << captured.reason;
    EXPECT_EQ(captured.lanes, owners == 4 ? 1 : 2);
  }
}

/// Keeps the mask of the last shape that it has seen.
struct Masked : Piece {
  Masked() : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}
  ValueList run(const ValueList& in) override {
    const at::Tensor x = linear(in[0].tensor());
    if (!mask.defined() || mask.size(0) != x.size(0)) mask = at::ones_like(x.detach()).triu();
    return {slowly(at::tanh(x * mask), 2)};
  }
  torch::nn::Linear linear;
  at::Tensor mask;
};

TEST_F(Lanes, AreGivenUpWhereMicrobatchesUseEachOthersTensors) {
  Training run{.model = {.name = "Masked", .make = [](int, int) { return std::make_shared<Masked>(); }},
               .schedule = "Interleaved1F1B"};
  run.rows = [](int) { return 22; };  // 6, 6, 5, 5: masks change within a step
  const CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.lanes, 1);
  EXPECT_EQ(captured.replayed, 4U) << captured.reason;  // the second step tries lanes, the third goes without
  run.rows = [](int) { return 24; };                    // the mask is made in the first step and stays
  const CapturedSteps alike = compare(run);
  EXPECT_GT(alike.lanes, 1);
  EXPECT_EQ(alike.replayed, 5U) << alike.reason;
}

/// The backward of one microbatch uses what that of another has left.
struct Following : torch::autograd::Function<Following> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    if (in_step > 0 && calls++ % in_step == 0) last.reset();
    const at::Tensor given = last.defined() ? gradients[0] + 0 * last.sum() : gradients[0];
    last = given * 2;
    return {given};
  }
  static inline at::Tensor last;
  static inline int calls = 0;
  static inline int in_step = 0;  // calls; if 0, it goes on where the step before has ended
};

struct Followed : Piece {
  Followed() : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))) {}
  ValueList run(const ValueList& in) override { return {Following::apply(at::tanh(linear(in[0].tensor())))}; }
  torch::nn::Linear linear;
};

TEST_F(Lanes, AreGivenUpWhereBackwardsUseEachOthersTensors) {
  Training run{.model = {.name = "Followed", .make = [](int, int) { return std::make_shared<Followed>(); }},
               .schedule = "Interleaved1F1B"};
  Following::calls = 0;
  Following::in_step = run.stages * run.microbatches;
  const CapturedSteps captured = compare(run);
  Following::last.reset();
  EXPECT_EQ(captured.lanes, 1);
  EXPECT_EQ(captured.replayed, 4U) << captured.reason;
}

/// It goes on where the step before has ended, which a graph cannot. What a capture that fails has made is never
/// computed: the step that uses it fails, and later ones go on without graphs.
TEST_F(Lanes, ThatAreGivenUpLeaveNoTensorsThatLookComputed) {
  Training run{.model = {.name = "Followed", .make = [](int, int) { return std::make_shared<Followed>(); }},
               .schedule = "Interleaved1F1B"};
  Following::last.reset();
  Following::in_step = 0;
  const Trace got = train(run, true).front();
  Following::last.reset();
  const auto has = [&](const char* name) {
    return std::find(got.names.begin(), got.names.end(), name) != got.names.end();
  };
  EXPECT_TRUE(has("step 1: failed"));
  EXPECT_FALSE(has("step 2: failed"));
  EXPECT_EQ(got.captured.replayed, 0U);
  EXPECT_THAT(got.captured.reason, testing::HasSubstr("a capture that failed"));
}

/// All stages count in one tensor that none of them has as a buffer.
struct Counting : Piece {
  explicit Counting(const at::Tensor& of_all)
      : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))), count(of_all) {}
  ValueList run(const ValueList& in) override {
    count.add_(1);
    return {at::tanh(linear(in[0].tensor()) / count.clone())};
  }
  torch::nn::Linear linear;
  at::Tensor count;
};

TEST_F(Lanes, AreGivenUpWhereStagesChangeTheSameTensor) {
  at::Tensor count;
  Training run{.model = {.name = "Counting",
                         .make = [&](int stage, int) -> PiecePtr {
                           if (stage == 0) count = at::zeros({}, at::TensorOptions(kGpu));
                           return std::make_shared<Counting>(count);
                         }},
               .schedule = "Interleaved1F1B"};
  const CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.lanes, 1);
  EXPECT_EQ(captured.replayed, 4U) << captured.reason;
}

TEST_F(Lanes, AreAsManyAsAskedFor) {
  Training run{.model = model("Dropout"), .schedule = "LoopedBFS", .microbatches = 6, .steps = 4};
  for (const auto& [asked, given] : {std::pair(0, 6), std::pair(1, 1), std::pair(4, 4), std::pair(100, 6)}) {
    SCOPED_TRACE(asked);
    run.options = [most = asked](PipelineOptions& options) { options.lanes = most; };
    const CapturedSteps captured = compare(run);
    EXPECT_EQ(captured.lanes, given);
    EXPECT_EQ(captured.replayed, 3U) << captured.reason;
  }
}

/// Hands on 9 MiB per microbatch.
struct Wide : Piece {
  Wide() : weight(register_parameter("weight", at::ones({kWidth}))) {}
  ValueList run(const ValueList& in) override { return {at::tanh(in[0].tensor() * weight)}; }
  at::Tensor weight;
};

TEST_F(Lanes, AreNotTakenWhereKernelsAreLarge) {
  constexpr std::int64_t kTall = (9 << 20) / (kWidth * 4) + 1;
  Training run{.model = {.name = "Wide", .make = [](int, int) { return std::make_shared<Wide>(); }}, .steps = 3};
  run.rows = [](int) { return 4 * kTall; };
  EXPECT_EQ(compare(run).lanes, 1);
  run.rows = [](int) { return 2 * kTall; };
  EXPECT_EQ(compare(run).lanes, 2);
}

TEST_F(Lanes, OfReplicas) {
  Training run{.model = model("Dropout"), .schedule = "Interleaved1F1B", .replicas = 2, .microbatches = 6};
  run.keep_outputs = false;
  const CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.replayed, 5U) << captured.reason;
  EXPECT_GT(captured.lanes, 1);
}

/// A recorded step has one lane: its actions are listed one after the other. The schedule that was chosen has several.
TEST_F(Lanes, ComeBackWhenAScheduleIsChosen) {
  Training run{.model = model("Dropout"), .schedule = "Interleaved1F1B", .steps = 30};
  run.keep_outputs = false;
  run.options = [](PipelineOptions& options) {
    options.schedule = "auto";
    options.automatic = {.profile_steps = 2, .time_budget = 0.5};
  };
  const CapturedSteps captured = train(run, true).front().captured;
  EXPECT_GE(captured.replayed, 20U) << captured.reason;
  EXPECT_GT(captured.lanes, 1);
}

TEST_F(Lanes, WithMastersRecomputeAndGradientsThatExist) {
  Training run{.model = model("Dropout"), .schedule = "Interleaved1F1B", .microbatches = 6, .steps = 12};
  run.zero = [](int step, auto& optimizer) {
    if (step % 3 == 2) optimizer.zero_grad();
  };
  const std::vector<std::function<void(PipelineOptions&)>> ways = {
      [](PipelineOptions&) {},
      [](PipelineOptions& options) { options.recompute = Recompute::stage(); },
      [](PipelineOptions& options) {
        options.accumulate = 3;
        options.precision.compute = at::kBFloat16;
      },
  };
  for (std::size_t way = 0; way < ways.size(); ++way) {
    SCOPED_TRACE(way);
    run.options = ways[way];
    const CapturedSteps captured = compare(run);
    EXPECT_GE(captured.replayed, 8U) << captured.reason;
    EXPECT_GT(captured.lanes, 1);
  }
}

/// Seconds of a replayed step of four stages, alone in their kernels' order or in lanes.
double replay(const std::string& schedule, bool in_one_order, CapturedSteps& captured) {
  constexpr int kParts = 8;
  double seconds = 0;
  run_ranks({.ranks = 1, .device = [](RankId) { return kGpu; }}, [&](World& world) {
    const at::Tensor shared = at::zeros({1}, at::TensorOptions(world.device()));
    std::vector<Stage> stages;
    for (int s = 0; s < 4; ++s) {
      auto layer = std::make_shared<bench::NarrowLayer>(/*passes=*/3);
      layer->to(world.device());
      if (in_one_order) layer->register_buffer("shared", shared);
      stages.push_back(make_stage(s, layer));
    }
    Pipeline pipeline(world, std::move(stages),
                      {.schedule = schedule,
                       .stages_per_rank = 4,
                       .microbatches = kParts,
                       .loss = [](const at::Tensor& output, const at::Tensor&) { return output.mean(); },
                       .graph = true});
    const at::Tensor x = bench::narrow_input(30 * kParts, world.device());
    const at::Tensor y = at::zeros({30 * kParts}, x.options());
    std::vector<double> all;
    for (int i = 0; i < 14; ++i) {
      synchronize();
      const double begin = seconds_now();
      pipeline.step({x}, {.target = y});
      synchronize();
      for (const at::Tensor& parameter : pipeline.parameters()) parameter.mutable_grad().reset();
      if (i >= 4) all.push_back(seconds_now() - begin);
    }
    seconds = median(all);
    captured = pipeline.captured();
  });
  return seconds;
}

TEST_F(Lanes, ComputeSmallKernelsSideBySide) {
  for (const char* schedule : {"Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS"}) {
    CapturedSteps apart;
    CapturedSteps together;
    const double one = replay(schedule, true, apart);
    const double several = replay(schedule, false, together);
    std::printf("lanes: %s, %d lanes take %.2f ms, one %.2f ms: %.3f\n", schedule, together.lanes, 1e3 * several,
                1e3 * one, several / one);
    EXPECT_EQ(apart.lanes, 1);
    EXPECT_GT(together.lanes, 1) << together.reason;
    EXPECT_LE(several / one, 0.75) << schedule;
  }
}

}  // namespace
}  // namespace stagecraft::equivalence
