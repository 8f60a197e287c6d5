// Steps as graphs whose modules, losses or callers keep and replace tensors: always the bits of the eager step. Needs a
// GPU: `make test-gpu`.

#include "training.h"

namespace stagecraft::equivalence {
namespace {

class GraphMemory : public OnGpu {};

/// Keeps a mask for as long as the shape stays the same; it is no buffer.
struct Caching : detail::Linear {
  ValueList run(const ValueList& in) override {
    const at::Tensor x = at::tanh(linear(in[0].tensor()));
    if (!mask.defined() || mask.size(0) != x.size(0)) {
      mask = (at::arange(x.size(0), x.options().dtype(at::kLong)) % 3 + 1).to(x.scalar_type());
    }
    return {x * mask.unsqueeze(1)};
  }
  at::Tensor mask;
};

Training caching(const std::function<bool(int step)>& evaluates) {
  Training run{.model = {.name = "Caching", .make = [](int, int) { return std::make_shared<Caching>(); }}};
  run.schedule = "1F1B";
  run.ranks = run.stages = 2;
  run.steps = 12;
  run.after = [evaluates](int step, Pipeline& pipeline, const auto&) {
    if (!evaluates(step)) return;
    pipeline.eval({at::ones({20, kWidth}, at::TensorOptions(kGpu))});
    for (int i = 0; i < 50; ++i) at::full({24}, 1e6, at::TensorOptions(kGpu));  // takes memory that is free
  };
  return run;
}

/// A graph reads a mask that the module has replaced since. One eager step shows that it makes the same again.
TEST_F(GraphMemory, TensorsThatModulesKeepAndReplace) {
  EXPECT_EQ(compare(caching([](int step) { return step > 0 && step % 2 == 1; })).replayed, 10U);
}

/// Of a `Piece` per stage, on one lane: evaluations come in between.
template <typename Piece>
Training on_one_lane(const char* name, int ranks, int steps) {
  Training run{.model = {.name = name, .make = [](int, int) { return std::make_shared<Piece>(); }}};
  run.schedule = "LoopedBFS";
  run.ranks = ranks;
  run.steps = steps;
  run.options = [](PipelineOptions& options) { options.lanes = 1; };
  return run;
}

/// Evaluations measure what steps are divided by.
struct Calibrated : detail::Linear {
  ValueList run(const ValueList& in) override {
    const at::Tensor x = at::tanh(linear(in[0].tensor()));
    if (!is_training() || !scale.defined()) scale = x.detach().abs().mean(0) + 0.5;
    return {x / scale};
  }
  at::Tensor scale;
};

TEST_F(GraphMemory, TensorsThatEvaluationsReplaceByOthers) {
  for (const int ranks : {1, 2}) {
    for (const int every : {8, 3}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, every " + std::to_string(every));
      Training run = on_one_lane<Calibrated>("Calibrated", ranks, 26);
      run.after = [every](int step, Pipeline& pipeline, const auto&) {
        if (step % every == 1) pipeline.eval({at::full({20, kWidth}, 0.1 * step, at::TensorOptions(kGpu))});
      };
      const CapturedSteps captured = compare(run);
      EXPECT_GE(captured.replayed, every == 8 ? 14U : 1U) << captured.reason;
    }
  }
}

/// A mask for another shape, which steps make again, and a scale that later evaluations measure.
struct TwoCaches : Caching {
  ValueList run(const ValueList& in) override {
    const at::Tensor x = Caching::run(in)[0].tensor();
    if (!scale.defined()) scale = at::ones({kWidth}, x.options().requires_grad(false));
    if (!is_training() && measures) scale = x.detach().abs().mean(0) + 0.5;
    return {x / scale};
  }
  at::Tensor scale;
  bool measures = false;
};

/// What is made again says nothing of what is not.
TEST_F(GraphMemory, TensorsThatEvaluationsReplaceAfterOthers) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    Training run = on_one_lane<TwoCaches>("TwoCaches", ranks, 20);
    run.after = [](int step, Pipeline& pipeline, const std::vector<PiecePtr>& pieces) {
      if (step % 4 != 2) return;
      for (const Stage& stage : pipeline.stages()) {
        std::dynamic_pointer_cast<TwoCaches>(pieces[stage.index().index()])->measures = step % 8 == 6;
      }
      pipeline.eval({at::full({20, kWidth}, 0.1 * step, at::TensorOptions(kGpu))});
    };
    const CapturedSteps captured = compare(run);
    EXPECT_GE(captured.replayed, 10U) << captured.reason;
  }
}

/// Steps measure what they divide by, with the first batch after each evaluation.
struct MeasuredAnew : detail::Linear {
  ValueList run(const ValueList& in) override {
    const at::Tensor x = at::tanh(linear(in[0].tensor()));
    if (!is_training()) {
      scale.reset();
      return {x};
    }
    if (!scale.defined()) scale = x.detach().abs().mean(0) + 0.5;
    return {x / scale};
  }
  at::Tensor scale;
};

TEST_F(GraphMemory, TensorsThatStepsMakeAnewAfterEvaluations) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    Training run = on_one_lane<MeasuredAnew>("MeasuredAnew", ranks, 24);
    run.after = [](int step, Pipeline& pipeline, const auto&) {
      if (step % 8 == 7) pipeline.eval({at::ones({20, kWidth}, at::TensorOptions(kGpu))});
    };
    const CapturedSteps captured = compare(run);
    EXPECT_GE(captured.replayed, 14U) << captured.reason;
  }
}

/// The module makes its mask while the step is captured, and evaluations use it later.
TEST_F(GraphMemory, TensorsThatModulesMakeDuringACapture) {
  Training run = caching([](int step) { return step == 0; });
  run.rows = [](int step) { return step % 5 == 4 ? 20 : 24; };
  std::vector<at::Tensor> outputs;  // of the last rank
  run.before = [&](int step, Pipeline& pipeline, const auto&) {
    if (step % 3 != 2) return;
    const Value output = pipeline.eval({at::ones({24, kWidth}, at::TensorOptions(kGpu))}).output;
    if (pipeline.has_last_stage()) outputs.push_back(output[0].tensor().clone());
  };
  const std::vector<Trace> eager = train(run, false);
  const std::vector<at::Tensor> expected = std::exchange(outputs, {});
  const std::vector<Trace> graph = train(run, true);
  for (std::size_t rank = 0; rank < 2; ++rank) expect_same_bits(graph[rank], eager[rank]);
  ASSERT_EQ(outputs.size(), expected.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) EXPECT_TRUE(are_same_bits(outputs[i], expected[i])) << i;
}

/// Has a number of the last step for others to read.
struct Telling : detail::Dropout {
  ValueList run(const ValueList& in) override {
    ValueList out = detail::Dropout::run(in);
    told = out[0].tensor().detach().abs().mean(0);
    return out;
  }
  at::Tensor told;
};

/// What every module has told after every step, by stage of the first replica.
std::vector<std::vector<at::Tensor>> told_by(Training run, GraphChoice graph, std::vector<Trace>& traces) {
  std::vector<std::vector<at::Tensor>> told(static_cast<std::size_t>(run.stages));
  run.after = [&](int, Pipeline& pipeline, const std::vector<PiecePtr>& pieces) {
    for (const Stage& stage : pipeline.stages()) {
      if (pipeline.world().replica() != 0) continue;
      const auto piece = std::dynamic_pointer_cast<Telling>(pieces[stage.index().index()]);
      told[stage.index().index()].push_back(piece->told.clone());
    }
  };
  traces = train(run, graph);
  return told;
}

/// Evaluations, and steps of another shape, replace it.
TEST_F(GraphMemory, TensorsThatModulesLeaveForOthers) {
  for (const auto& [ranks, replicas, evaluates] :
       {std::tuple(1, 1, false), {2, 1, false}, {1, 2, false}, {1, 1, true}, {2, 1, true}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(replicas) + " replicas, evaluates " +
                 std::to_string(evaluates));
    Training run{.model = {.name = "Telling", .make = [](int, int) { return std::make_shared<Telling>(); }}};
    run.ranks = ranks;
    run.replicas = replicas;
    run.schedule = "Interleaved1F1B";
    run.steps = evaluates ? 40 : 6;
    if (evaluates) {
      run.rows = [](int step) { return step == 25 ? 20 : 24; };
      run.before = [](int step, Pipeline& pipeline, const auto&) {
        if (step % 12 == 3) pipeline.eval({at::ones({24, kWidth}, at::TensorOptions(kGpu))});
      };
    }
    std::vector<Trace> eager;
    std::vector<Trace> graph;
    const auto expected = told_by(run, false, eager);
    const auto told = told_by(run, true, graph);
    for (std::size_t rank = 0; rank < graph.size(); ++rank) {
      expect_same_bits(graph[rank], eager[rank]);
      EXPECT_EQ(graph[rank].captured.replayed, evaluates ? 38U : 5U) << graph[rank].captured.reason;
    }
    for (std::size_t stage = 0; stage < told.size(); ++stage) {
      ASSERT_EQ(told[stage].size(), expected[stage].size());
      for (std::size_t i = 0; i < told[stage].size(); ++i) {
        EXPECT_TRUE(are_same_bits(told[stage][i], expected[stage][i])) << "stage " << stage << ", step " << i;
      }
    }
  }
}

/// Goes on from a tensor of the step before, and replaces it.
struct Carrying : detail::Dropout {
  ValueList run(const ValueList& in) override {
    const at::Tensor x = in[0].tensor();
    const at::Tensor mean = x.detach().mean(0);
    average = average.defined() ? average * 0.9 + mean * 0.1 : mean;
    return detail::Dropout::run({x - average});
  }
  at::Tensor average;
};

TEST_F(GraphMemory, TensorsThatModulesCarryAndReplace) {
  for (const auto& [ranks, replicas] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(replicas) + " replicas");
    Training run{.model = {.name = "Carrying", .make = [](int, int) { return std::make_shared<Carrying>(); }}};
    run.ranks = ranks;
    run.replicas = replicas;
    run.stage_options = [](const PiecePtr& piece) {
      StageOptions options;
      options.remember = [own = std::dynamic_pointer_cast<Carrying>(piece)] {
        return Remembered{[own, before = own->average](const auto&) { own->average = before; }, {own->average}};
      };
      return options;
    };
    const CapturedSteps captured = compare(run);
    EXPECT_EQ(captured.replayed, 0U);
    EXPECT_THAT(captured.reason, testing::HasSubstr("carries from step to step"));
  }
}

/// Reads a number on the device that is another tensor in every step.
struct Cooling : detail::Linear {
  ValueList run(const ValueList& in) override { return {detail::Linear::run(in)[0].tensor() / temperature}; }
  at::Tensor temperature;
};

TEST_F(GraphMemory, NumbersThatAreReplaced) {
  for (const auto& [ranks, shapes] : {std::pair(1, 1), {2, 1}, {1, 2}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(shapes) + " shapes");
    Training run{.model = {.name = "Cooling", .make = [](int, int) { return std::make_shared<Cooling>(); }}};
    run.schedule = "Interleaved1F1B";
    run.ranks = ranks;
    run.steps = 20;
    run.rows = [shapes = shapes](int step) { return step % shapes == 0 ? 24 : 20; };
    run.before = [](int step, Pipeline& pipeline, const std::vector<PiecePtr>& pieces) {
      for (const Stage& stage : pipeline.stages()) {
        std::dynamic_pointer_cast<Cooling>(pieces[stage.index().index()])->temperature =
            at::full({}, 1.0 + step, at::TensorOptions(kGpu));
      }
    };
    const CapturedSteps captured = compare(run);
    EXPECT_GT(captured.replayed, 0U);
    EXPECT_LE(captured.replayed, 3U * shapes);
    EXPECT_THAT(captured.reason, testing::HasSubstr("reads a number"));
  }
}

/// Reads a tensor that the caller gives it beside its inputs.
struct Weighted : detail::Linear {
  ValueList run(const ValueList& in) override { return {detail::Linear::run(in)[0].tensor() * weights}; }
  at::Tensor weights;
};

TEST_F(GraphMemory, TensorsThatTheCallerReplaces) {
  for (const auto& [ranks, replicas, every] :
       {std::tuple(1, 1, 1), {1, 1, 9}, {2, 1, 1}, {2, 1, 9}, {1, 2, 1}, {1, 2, 9}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(replicas) + " replicas, every " +
                 std::to_string(every) + " steps");
    Training run{.model = {.name = "Weighted", .make = [](int, int) { return std::make_shared<Weighted>(); }}};
    run.schedule = "Interleaved1F1B";
    run.ranks = ranks;
    run.replicas = replicas;
    run.steps = 30;
    run.before = [every = every](int step, Pipeline& pipeline, const std::vector<PiecePtr>& pieces) {
      if (step % every == 0) {
        for (const Stage& stage : pipeline.stages()) {
          std::dynamic_pointer_cast<Weighted>(pieces[stage.index().index()])->weights =
              at::full({kWidth}, 1.0 + 0.1 * step, at::TensorOptions(kGpu));
        }
      }
      if (step % 4 == 0) pipeline.eval({at::ones({24, kWidth}, at::TensorOptions(kGpu))});
    };
    const CapturedSteps captured = compare(run);
    if (every == 1) {
      EXPECT_LE(captured.replayed, 3U);
      EXPECT_THAT(captured.reason, testing::HasSubstr("replaced by another between steps"));
    } else {
      EXPECT_EQ(captured.replayed, 26U) << captured.reason;  // a step without a graph after each
    }
  }
}

/// The loss has a parameter of its own.
TEST_F(GraphMemory, ParametersOfNoStage) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    Training run{.model = model("Dropout")};
    run.schedule = "Interleaved1F1B";
    run.ranks = ranks;
    std::vector<at::Tensor> gradients;  // by run
    const auto train_it = [&](bool graph) {
      const at::Tensor scale = at::ones({}, at::TensorOptions(kGpu)).requires_grad_();
      run.options = [scale](PipelineOptions& options) {
        options.loss = [scale](const Value& output, const Value& target, const ValueDict&) {
          return (output[0].tensor() * scale - target.tensor()).pow(2).mean();
        };
      };
      std::vector<Trace> traces = train(run, graph);
      gradients.push_back(scale.grad());
      return traces;
    };
    const std::vector<Trace> eager = train_it(false);
    const std::vector<Trace> graph = train_it(true);
    for (std::size_t rank = 0; rank < graph.size(); ++rank) expect_same_bits(graph[rank], eager[rank]);
    EXPECT_TRUE(are_same_bits(gradients[1], gradients[0]));
    EXPECT_EQ(graph.back().captured.replayed, 0U);
    EXPECT_THAT(graph.back().captured.reason, testing::HasSubstr("no parameter of a stage"));
  }
}

/// Works on its input in place.
struct InPlace : detail::Linear {
  ValueList run(const ValueList& in) override {
    if (!in[0].tensor().requires_grad()) in[0].tensor().mul_(0.5);
    return detail::Linear::run(in);
  }
};

TEST_F(GraphMemory, InputsThatAStageChanges) {
  std::vector<std::vector<at::Tensor>> seen;  // by run
  for (const bool graph : {false, true}) {
    torch::manual_seed(5);
    const auto piece = std::make_shared<InPlace>();
    piece->to(kGpu);
    std::vector<at::Tensor>& all = seen.emplace_back();
    run_ranks({.ranks = 1, .device = [](RankId) { return kGpu; }}, [&](World& world) {
      std::vector<Stage> stages;
      stages.push_back(make_stage(0, piece, [&](const StageCall& call) { return Value(piece->run(call.arguments)); }));
      Pipeline pipeline(world, std::move(stages),
                        {.microbatches = 3,
                         .loss = [](const Value& output, const Value& target,
                                    const ValueDict&) { return (output[0].tensor() - target.tensor()).pow(2).mean(); },
                         .graph = graph});
      const at::Tensor x = at::ones({6, kWidth}, at::TensorOptions(kGpu));
      for (int step = 0; step < 5; ++step) {
        const StepResult result = pipeline.step({x}, {.target = at::zeros_like(x)});
        for (const at::Tensor& loss : result.losses) all.push_back(loss.clone());
        all.push_back(x.clone());
      }
      EXPECT_EQ(pipeline.captured().replayed, graph ? 3U : 0U)
          << pipeline.captured().reason;  // not the first two kinds
    });
  }
  ASSERT_EQ(seen[1].size(), seen[0].size());
  for (std::size_t i = 0; i < seen[0].size(); ++i) EXPECT_TRUE(are_same_bits(seen[1][i], seen[0][i])) << i;
}

}  // namespace
}  // namespace stagecraft::equivalence
