// OVERLAP_F_B on a GPU: the halves run side by side, and give the bits of one after the other. Needs a GPU:
// `make test-gpu`.

#include "bench/narrow_kernels.h"
#include "stagecraft/core/measurement.h"
#include "training.h"

namespace stagecraft::equivalence {
namespace {

class Overlaps : public OnGpu {};

/// Two stages on one rank. In the middle every forward overlaps the backward of the other stage and the microbatch
/// before, or runs right before it.
Schedule paired(int microbatches, bool overlap) {
  Row row;
  const auto add = [&](int forward_stage, int forward, int backward_stage, int backward) {
    const Action f = Action::forward(StageId(forward_stage), MicrobatchId(forward));
    const Action b = Action::backward(StageId(backward_stage), MicrobatchId(backward));
    if (overlap) {
      row.push_back(Action::overlap(f, b));
    } else {
      row.push_back(f);
      row.push_back(b);
    }
  };
  row.push_back(Action::forward(StageId(0), MicrobatchId(0)));
  row.push_back(Action::forward(StageId(1), MicrobatchId(0)));
  for (int m = 1; m < microbatches; ++m) {
    add(0, m, 1, m - 1);
    add(1, m, 0, m - 1);
  }
  row.push_back(Action::backward(StageId(1), MicrobatchId(microbatches - 1)));
  row.push_back(Action::backward(StageId(0), MicrobatchId(microbatches - 1)));
  const Placement placement =
      make_schedule("Interleaved1F1B", {.ranks = 1, .stages_per_rank = 2, .microbatches = microbatches}).placement;
  return {overlap ? "overlapping" : "one after the other", placement, microbatches, {row}};
}

enum class By { kHalves, kStage };  // who computes an overlap

struct Times {
  std::map<std::string, Span> spans;  // of the last recorded step, by action
  double replay = 0;                  // seconds of a step as a graph
};

constexpr int kMicrobatches = 8;
constexpr std::int64_t kRows = 60;
constexpr std::int64_t kPasses = 6;  // a forward takes twice as many, a backward too

Times times_of(const Schedule& schedule, By by) {
  Times times;
  run_ranks({.ranks = 1, .device = [](RankId) { return kGpu; }}, [&](World& world) {
    std::vector<Stage> stages;
    const at::Tensor shared = at::zeros({1}, at::TensorOptions(world.device()));  // or graphs would have lanes
    for (int s = 0; s < 2; ++s) {
      auto layer = std::make_shared<bench::NarrowLayer>(kPasses);
      layer->register_buffer("shared", shared);
      layer->to(world.device());
      const auto forward = [layer](const StageCall& call) -> Value { return layer->forward(call.tensor(0)); };
      StageOptions options;
      if (by == By::kStage) {
        options.overlapped = [forward](const OverlapCall& both) {
          both.backward();
          return forward(both.forward);
        };
      }
      stages.push_back(make_stage(s, layer, forward, options));
    }
    const PipelineOptions options{.schedule = schedule,
                                  .loss = [](const at::Tensor& output, const at::Tensor&) { return output.mean(); },
                                  .graph = "auto"};
    Pipeline pipeline(world, std::move(stages), options);
    const at::Tensor x = bench::narrow_input(kRows * kMicrobatches, world.device());
    const at::Tensor y = at::zeros({kRows * kMicrobatches}, x.options());
    const auto step = [&] {
      pipeline.step({x}, {.target = y});
      for (const at::Tensor& parameter : pipeline.parameters()) parameter.mutable_grad().reset();
    };
    pipeline.record_timeline(true);
    for (int i = 0; i < 4; ++i) step();
    for (const Span& span : pipeline.timeline()) times.spans[to_text(span.action)] = span;
    pipeline.record_timeline(false);
    for (int i = 0; i < 3; ++i) step();
    ASSERT_TRUE(pipeline.captured().last_was_replayed) << pipeline.captured().reason;
    std::vector<double> seconds;
    for (int i = 0; i < 10; ++i) {
      synchronize();
      const double begin = seconds_now();
      step();
      synchronize();
      seconds.push_back(seconds_now() - begin);
    }
    times.replay = median(seconds);
  });
  return times;
}

void expect_side_by_side(By by) {
  const Schedule overlapping = paired(kMicrobatches, true);
  const Times apart = times_of(paired(kMicrobatches, false), By::kHalves);
  const Times together = times_of(overlapping, by);
  ASSERT_EQ(apart.spans.size(), together.spans.size());
  std::vector<double> ratios;
  for (const Action& slot : overlapping.rows[0]) {
    if (!slot.is_overlap()) continue;
    double begin = 1e30;
    double end = 0;
    double sum = 0;
    for_each_part(slot, [&](const Action& half) {
      const Span& span = together.spans.at(to_text(half));
      begin = std::min(begin, span.start);
      end = std::max(end, span.end);
      sum += apart.spans.at(to_text(half)).end - apart.spans.at(to_text(half)).start;
    });
    ratios.push_back((end - begin) / sum);
  }
  std::printf("overlap: median %.3f of the halves' sum, worst %.3f; a replayed step %.2f ms, %.2f ms without: %.3f\n",
              median(ratios), *std::max_element(ratios.begin(), ratios.end()), 1e3 * together.replay,
              1e3 * apart.replay, together.replay / apart.replay);
  EXPECT_LE(median(ratios), 0.7) << "of the sum of the halves";
  // 28 of 32 actions overlap: with 0.7, (4 + 28 * 0.7) / 32.
  EXPECT_LE(together.replay / apart.replay, 0.74) << "as a graph";
}

TEST_F(Overlaps, RunSideBySide) { expect_side_by_side(By::kHalves); }
TEST_F(Overlaps, OfAStagesOwnRunSideBySide) { expect_side_by_side(By::kStage); }

const std::int64_t kDeepWidth = kGpu.is_cuda() ? 768 : 16;

/// Allocates and frees much, so that memory taken too early would be overwritten.
struct Deep : Piece {
  Deep() {
    for (int i = 0; i < 6; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(kDeepWidth, kDeepWidth)));
    }
  }
  ValueList run(const ValueList& in) override {
    at::Tensor x = in[0].tensor();
    for (auto& layer : layers) x = x + at::dropout(at::gelu(layer(x)) * 0.5, 0.1, is_training());
    return {x};
  }
  std::vector<torch::nn::Linear> layers;
};

Training deep() {
  Training run{.model = {.name = "Deep",
                         .make = [](int, int) { return std::make_shared<Deep>(); },
                         .input =
                             [](std::int64_t rows) {
                               return at::randn({rows, kDeepWidth});
                             }},
               .schedule = "Interleaved1F1B",
               .stages = 2,
               .microbatches = 8,
               .steps = 12};
  run.rows = [](int) { return kGpu.is_cuda() ? 8 * 512 : 8 * 4; };
  return run;
}

TEST_F(Overlaps, GiveTheBitsOfOneAfterTheOther) {
  Training run = deep();
  run.options = [](PipelineOptions& options) { options.schedule = paired(8, false); };
  const std::vector<Trace> apart = train(run, false);
  for (const bool by_itself : {false, true}) {
    SCOPED_TRACE(by_itself);
    run.options = [](PipelineOptions& options) { options.schedule = paired(8, true); };
    run.stage_options = [by_itself](const PiecePtr& piece) {
      StageOptions options;
      if (!by_itself) return options;
      options.overlapped = [piece](const OverlapCall& both) {
        both.backward();
        return Value(piece->run(both.forward.arguments));
      };
      return options;
    };
    expect_same_bits(train(run, false)[0], apart[0]);
    const std::vector<Trace> graph = train(run, true);
    expect_same_bits(graph[0], apart[0]);
    EXPECT_EQ(graph[0].captured.replayed, 11U) << graph[0].captured.reason;
  }
}

/// DualPipeV without overlaps, in the same order.
Schedule one_after_the_other(int ranks, int microbatches) {
  Schedule apart = make_schedule("DualPipeV", {.ranks = ranks, .stages_per_rank = 2, .microbatches = microbatches});
  for (Row& row : apart.rows) {
    Row flat;
    for (const Action& slot : row) for_each_part(slot, [&](const Action& half) { flat.push_back(half); });
    row = std::move(flat);
  }
  return apart;
}

TEST_F(Overlaps, BetweenRanksGiveTheBitsOfOneAfterTheOther) {
  Training run = deep();
  run.schedule = "DualPipeV";
  run.stages = 4;
  run.ranks = 2;
  const std::vector<Trace> overlapping = train(run, false);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    expect_same_bits(train(run, true)[rank], overlapping[rank]);
  }
  // The stages' own functions take the message of the backward first.
  run.stage_options = [](const PiecePtr& piece) {
    StageOptions options;
    options.overlapped = [piece](const OverlapCall& both) {
      both.backward();
      return Value(piece->run(both.forward.arguments));
    };
    return options;
  };
  for (const bool graph : {false, true}) {
    SCOPED_TRACE(graph);
    const std::vector<Trace> by_stages = train(run, graph);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      expect_same_bits(by_stages[rank], overlapping[rank]);
      EXPECT_EQ(by_stages[rank].captured.replayed, graph ? 11U : 0U) << by_stages[rank].captured.reason;
    }
  }
  run.stage_options = [](const PiecePtr&) { return StageOptions(); };
  run.options = [](PipelineOptions& options) { options.schedule = one_after_the_other(2, 8); };
  const std::vector<Trace> apart = train(run, false);
  for (std::size_t rank = 0; rank < 2; ++rank) expect_same_bits(overlapping[rank], apart[rank]);
}

/// Scales its input. Can compute its backward without autograd.
struct Scaling : Piece {
  Scaling() : factor(register_parameter("factor", at::ones({kDeepWidth}))) {}
  ValueList run(const ValueList& in) override {
    inputs[whereabouts().microbatch.value] = in[0].tensor();
    return {in[0].tensor() * factor};
  }
  at::Tensor factor;
  std::map<std::int64_t, at::Tensor> inputs = {};  // by microbatch
};

/// Adds to the gradients of the inputs and parameters, on the forward's stream. The last stage has a loss too.
Value scaled_by_hand(const std::vector<std::shared_ptr<Scaling>>& all, const OverlapCall& both) {
  Scaling& back = *all[both.backward_stage.index()];
  if (both.backward_stage.index() + 1 == all.size()) {
    both.backward();
  } else {
    const at::Tensor input = back.inputs.at(both.backward_microbatch.value);
    const at::NoGradGuard no_graph;
    const at::Tensor& gradient = both.gradients[0];
    const auto add = [](const at::Tensor& tensor, const at::Tensor& more) {
      at::Tensor& sum = tensor.mutable_grad();
      sum = sum.defined() ? sum.add_(more) : more;
    };
    if (input.requires_grad()) add(input, gradient * back.factor);
    add(back.factor, (gradient * input).sum(0));
  }
  return Value(all[both.forward.stage.index()]->run(both.forward.arguments));
}

TEST_F(Overlaps, WhoseBackwardAStageComputesByHand) {
  std::vector<std::shared_ptr<Scaling>> all;
  Training run = deep();
  run.model.make = [&](int stage, int) {
    if (stage == 0) all.clear();
    return all.emplace_back(std::make_shared<Scaling>());
  };
  run.schedule = "DualPipeV";
  run.stages = 4;
  for (const auto& [ranks, has_masters] : {std::pair(1, false), {2, false}, {1, true}, {2, true}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, masters " + std::to_string(has_masters));
    run.ranks = ranks;
    run.stages = 2 * ranks;
    run.options = [has_masters = has_masters](PipelineOptions& options) {
      if (has_masters) options.precision.compute = at::kBFloat16;
    };
    run.stage_options = [](const PiecePtr&) { return StageOptions(); };
    const std::vector<Trace> expected = train(run, false);
    run.stage_options = [&](const PiecePtr&) {
      StageOptions options;
      options.overlapped = [&](const OverlapCall& both) { return scaled_by_hand(all, both); };
      return options;
    };
    for (const bool graph : {false, true}) {
      SCOPED_TRACE(graph);
      const std::vector<Trace> by_hand = train(run, graph);
      for (std::size_t rank = 0; rank < by_hand.size(); ++rank) expect_same_bits(by_hand[rank], expected[rank]);
    }
  }
}

/// Both halves then make losses, and their gradients. What one makes must not be what the other takes.
TEST_F(Overlaps, WhoseBackwardsComputeLossesAgain) {
  for (const std::int64_t rows : {4, 1201}) {
    SCOPED_TRACE(rows);
    Training run = deep();
    run.schedule = "DualPipeV";
    run.microbatches = 3;  // one is larger than the others, so it counts more
    run.rows = [rows](int) { return rows; };
    run.stage_options = [](const PiecePtr&) {
      StageOptions options;
      options.auxiliary_loss = [](const Value& output) { return output[0].tensor().pow(2).mean(); };
      return options;
    };
    run.options = [](PipelineOptions& options) { options.recompute = Recompute::stage(); };
    const std::vector<Trace> overlapping = train(run, false);
    expect_same_bits(train(run, true)[0], overlapping[0]);
    run.options = [](PipelineOptions& options) {
      options.recompute = Recompute::stage();
      options.schedule = one_after_the_other(1, 3);
    };
    expect_same_bits(overlapping[0], train(run, false)[0]);
  }
}

}  // namespace
}  // namespace stagecraft::equivalence
