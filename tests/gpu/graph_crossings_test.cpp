// Steps as graphs together with other features: always the bits of the eager step. Needs a GPU: `make test-gpu`.

#include <cstdlib>

#include "support/scratch_folder.h"
#include "training.h"

namespace stagecraft::equivalence {
namespace {

class GraphCrossings : public OnGpu {};

/// Two layers with dropout, which continues one stream of random numbers.
struct Layered : Piece {
  Layered() {
    for (int i = 0; i < 2; ++i) {
      linears.push_back(register_module(std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    }
  }
  at::Tensor layer(std::size_t i, const at::Tensor& x) {
    return at::dropout(at::tanh(linears[i](x)), 0.3, is_training());
  }
  ValueList run(const ValueList& in) override { return {layer(1, layer(0, in[0].tensor()))}; }
  std::vector<torch::nn::Linear> linears;
};

StageOptions in_layers(const PiecePtr& piece) {
  const auto layered = std::dynamic_pointer_cast<Layered>(piece);
  StageOptions options;
  options.layers = [layered] {
    std::vector<StageLayer> all;
    for (std::size_t i = 0; i < 2; ++i) {
      all.push_back({std::to_string(i), [layered, i](const StageCall& call) -> Value {
                       return ValueList{layered->layer(i, call.tensor(0))};
                     }});
    }
    return all;
  };
  return options;
}

TEST_F(GraphCrossings, RecomputeOfLayers) {
  Training run{.model = {.name = "Layered", .make = [](int, int) { return std::make_shared<Layered>(); }}};
  run.stage_options = in_layers;
  const std::vector<Recompute> ways = {Recompute::every(1), Recompute::every(2),
                                       Recompute::where([](const std::string& name) { return name == "1"; })};
  for (std::size_t way = 0; way < ways.size(); ++way) {
    run.options = [&](PipelineOptions& options) { options.recompute = ways[way]; };
    for (const char* schedule : {"Interleaved1F1B", "InterleavedZeroBubble"}) {
      SCOPED_TRACE(std::string(schedule) + ", way " + std::to_string(way));
      run.schedule = schedule;
      EXPECT_EQ(compare(run).replayed, 5U);
    }
  }
}

TEST_F(GraphCrossings, RecomputeBetweenRanks) {
  Training run{.model = {.name = "Layered", .make = [](int, int) { return std::make_shared<Layered>(); }}};
  run.stage_options = in_layers;
  run.options = [](PipelineOptions& options) { options.recompute = Recompute::every(1); };
  run.schedule = "ZBVZeroBubble";
  run.ranks = 2;
  EXPECT_EQ(compare(run).replayed, 5U);
  run.schedule = "DualPipeV";  // halves of overlaps are computed again too
  EXPECT_EQ(compare(run).replayed, 5U);
}

TEST_F(GraphCrossings, SplitBackwardsThatAddUpGradientsOfSeveralSteps) {
  Training run{.model = model("Dropout"), .schedule = "ZB-H1", .stages = 2, .ranks = 2, .steps = 15};
  run.zero = [](int step, auto& optimizer) {
    if (step % 3 == 2) optimizer.zero_grad();
  };
  run.options = [](PipelineOptions& options) { options.accumulate = 3; };
  EXPECT_EQ(compare(run).replayed, 13U);
  run.options = [](PipelineOptions& options) {
    options.accumulate = 3;
    options.precision.compute = at::kBFloat16;
  };
  EXPECT_GE(compare(run).replayed, 11U);
  run.options = [](PipelineOptions& options) {
    options.accumulate = 3;
    options.recompute = Recompute::stage();
  };
  EXPECT_EQ(compare(run).replayed, 13U);
}

TEST_F(GraphCrossings, ParametersThatAreFrozen) {
  Training run{.model = model("Dropout"), .steps = 12};
  run.options = [](PipelineOptions& options) { options.freeze = {"*.bias"}; };
  EXPECT_EQ(compare(run).replayed, 11U);
  run.options = [](PipelineOptions&) {};
  run.before = [](int step, Pipeline&, const std::vector<PiecePtr>& pieces) {
    if (step % 4 != 0) return;
    for (at::Tensor& parameter : pieces[1]->parameters()) parameter.set_requires_grad(step != 4);
  };
  const CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.graphs, 2);
  EXPECT_EQ(captured.replayed, 10U);
}

TEST_F(GraphCrossings, Replicas) {
  for (const char* name : {"Dropout", "BatchNorm"}) {
    SCOPED_TRACE(name);
    Training run{.model = model(name), .schedule = "InterleavedZeroBubble", .stages = 4, .ranks = 1, .replicas = 2};
    run.steps = 20;
    EXPECT_EQ(compare(run).replayed, 19U);
    run.schedule = "1F1B";
    run.stages = run.ranks = 2;
    EXPECT_EQ(compare(run).replayed, 19U);
  }
  Training run{.model = model("Dropout"), .replicas = 2, .steps = 12};
  run.options = [](PipelineOptions& options) { options.accumulate = 3; };
  run.zero = [](int step, auto& optimizer) {
    if (step % 3 == 2) optimizer.zero_grad();
  };
  EXPECT_EQ(compare(run).replayed, 10U);
}

TEST_F(GraphCrossings, ReplicasThatShareParametersStayEager) {
  Training run{.model = model("Mlp"), .replicas = 2};
  run.options = [](PipelineOptions& options) { options.shard = Shard::kOptimizer; };
  const CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.replayed, 0U);
  EXPECT_THAT(captured.reason, testing::HasSubstr("replicas share parameters"));
}

TEST_F(GraphCrossings, EvaluationBetweenStepsOfSeveralRanks) {
  Training run{.model = model("BatchNorm"), .schedule = "1F1B", .stages = 4, .ranks = 4, .steps = 10};
  run.after = [](int step, Pipeline& pipeline, const std::vector<PiecePtr>&) {
    if (step % 3 == 1) pipeline.eval({at::ones({10, kWidth}, at::TensorOptions(kGpu))});
  };
  EXPECT_EQ(compare(run).replayed, 9U);
}

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

/// A graph reads a mask that the module has replaced since.
TEST_F(GraphCrossings, TensorsThatModulesKeepAndReplace) {
  EXPECT_EQ(compare(caching([](int step) { return step > 0 && step % 2 == 1; })).replayed, 11U);
}

/// The module makes its mask while the step is captured, and evaluations use it later.
TEST_F(GraphCrossings, TensorsThatModulesMakeDuringACapture) {
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
TEST_F(GraphCrossings, TensorsThatModulesLeaveForOthers) {
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

TEST_F(GraphCrossings, TensorsThatModulesCarryAndReplace) {
  for (const auto& [ranks, replicas] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(replicas) + " replicas");
    Training run{.model = {.name = "Carrying", .make = [](int, int) { return std::make_shared<Carrying>(); }}};
    run.ranks = ranks;
    run.replicas = replicas;
    run.stage_options = [](const PiecePtr& piece) {
      StageOptions options;
      options.remember = [own = std::dynamic_pointer_cast<Carrying>(piece)] {
        return Remembered{[own, before = own->average] { own->average = before; }, {own->average}};
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

TEST_F(GraphCrossings, NumbersThatAreReplaced) {
  for (const auto& [ranks, shapes] : {std::pair(1, 1), {2, 1}, {1, 2}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(shapes) + " shapes");
    Training run{.model = {.name = "Cooling", .make = [](int, int) { return std::make_shared<Cooling>(); }}};
    run.schedule = "Interleaved1F1B";
    run.ranks = ranks;
    run.steps = 12;
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

TEST_F(GraphCrossings, TensorsThatTheCallerReplaces) {
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
      EXPECT_EQ(captured.replayed, 29U) << captured.reason;
    }
  }
}

/// The loss has a parameter of its own.
TEST_F(GraphCrossings, ParametersOfNoStage) {
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

TEST_F(GraphCrossings, InputsThatAStageChanges) {
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

/// Losses of all steps, and the parameters at the end.
std::vector<at::Tensor> in_turns(const std::vector<std::string>& schedules, bool graph, std::uint64_t& replayed) {
  torch::manual_seed(5);
  std::vector<PiecePtr> pieces;
  for (int s = 0; s < 4; ++s) {
    pieces.push_back(model("Dropout").make(s, 4));
    pieces.back()->to(kGpu);
  }
  const at::Tensor x = at::randn({24, kWidth}).to(kGpu);
  const at::Tensor y = at::randn({24, kWidth}).to(kGpu);
  std::vector<at::Tensor> trace;
  run_ranks({.ranks = 1, .device = [](RankId) { return kGpu; }}, [&](World& world) {
    std::vector<std::unique_ptr<Pipeline>> pipelines;
    for (const std::string& schedule : schedules) {
      std::vector<Stage> stages;
      for (int s = 0; s < 4; ++s) {
        stages.push_back(make_stage(s, pieces[static_cast<std::size_t>(s)],
                                    [piece = pieces[static_cast<std::size_t>(s)]](const StageCall& call) {
                                      return Value(piece->run(call.arguments));
                                    }));
      }
      pipelines.push_back(std::make_unique<Pipeline>(
          world, std::move(stages),
          PipelineOptions{.schedule = schedule,
                          .stages_per_rank = 4,
                          .microbatches = 4,
                          .loss = [](const Value& output, const Value& target,
                                     const ValueDict&) { return (output[0].tensor() - target.tensor()).pow(2).mean(); },
                          .graph = graph}));
    }
    torch::optim::AdamW optimizer(pipelines[0]->parameters(), torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < 12; ++step) {
      const StepResult result = pipelines[static_cast<std::size_t>(step) % pipelines.size()]->step({x}, {.target = y});
      for (const at::Tensor& loss : result.losses) trace.push_back(loss.clone());
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const at::Tensor& parameter : pipelines[0]->parameters()) trace.push_back(parameter.detach().clone());
    for (const auto& pipeline : pipelines) replayed += pipeline->captured().replayed;
  });
  return trace;
}

TEST_F(GraphCrossings, SchedulesThatTakeTurnsOverTheSameStages) {
  const std::vector<std::string> schedules = {"Interleaved1F1B", "InterleavedZeroBubble"};
  std::uint64_t replayed = 0;
  const std::vector<at::Tensor> eager = in_turns(schedules, false, replayed);
  EXPECT_EQ(replayed, 0U);
  const std::vector<at::Tensor> graph = in_turns(schedules, true, replayed);
  EXPECT_EQ(replayed, 10U);
  ASSERT_EQ(graph.size(), eager.size());
  for (std::size_t i = 0; i < graph.size(); ++i) EXPECT_TRUE(are_same_bits(graph[i], eager[i])) << i;
}

TEST_F(GraphCrossings, AScheduleThatIsChosenWhileItTrains) {
  Training run{.model = model("Dropout"), .schedule = "1F1B", .stages = 2, .ranks = 2, .steps = 40};
  run.type = at::kDouble;  // a planned schedule may add up gradients in another order
  run.keep_outputs = false;
  const std::vector<Trace> fixed = train(run, false);
  run.options = [](PipelineOptions& options) {
    options.schedule = "auto";
    options.automatic = {.profile_steps = 2, .time_budget = 0.5};
  };
  const std::vector<Trace> chosen = train(run, true);
  for (std::size_t rank = 0; rank < fixed.size(); ++rank) {
    EXPECT_GE(chosen[rank].captured.replayed, 30U) << chosen[rank].captured.reason;
    ASSERT_EQ(chosen[rank].names, fixed[rank].names);
    for (std::size_t i = 0; i < fixed[rank].names.size(); ++i) {
      EXPECT_TRUE(at::allclose(chosen[rank].tensors[i], fixed[rank].tensors[i], 1e-9, 1e-12)) << fixed[rank].names[i];
    }
  }
}

/// Losses, gradients of the last step, parameters and buffers.
std::vector<at::Tensor> train_exported(const Pipe& pipe, const PipelineOptions& given, int ranks, bool graph) {
  torch::manual_seed(5);
  const at::Tensor x = at::randn({24, 16}).to(kGpu);
  const at::Tensor y = at::randn({24, 16}).to(kGpu);
  std::vector<std::vector<at::Tensor>> traces(static_cast<std::size_t>(ranks));
  run_ranks({.ranks = ranks, .device = [](RankId) { return kGpu; }}, [&](World& world) {
    std::vector<at::Tensor>& trace = traces[world.rank().index()];
    PipelineOptions options = given;
    options.microbatches = 4;
    options.loss = [](const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); };
    options.seed = 3;
    options.graph = graph;
    Pipeline pipeline(world, pipe, options);
    torch::optim::AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < 8; ++step) {
      const StepResult result = pipeline.step({x}, {.target = y});
      for (const at::Tensor& loss : result.losses) trace.push_back(loss.clone());
      if (step % 3 == 1) pipeline.eval({x}, {.target = y});
      if (step == 7) {
        for (const at::Tensor& parameter : pipeline.parameters()) trace.push_back(parameter.grad().clone());
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const at::Tensor& parameter : pipeline.parameters()) trace.push_back(parameter.detach().clone());
    for (const Stage& stage : pipeline.stages()) {
      for (const auto& [name, buffer] : stage.buffers()) trace.push_back(buffer.clone());
    }
    EXPECT_EQ(pipeline.captured().replayed, graph ? 7U : 0U) << pipeline.captured().reason;
    EXPECT_EQ(pipeline.captured().lanes > 1, graph && ranks == 1);
  });
  std::vector<at::Tensor> all;
  for (const auto& trace : traces) all.insert(all.end(), trace.begin(), trace.end());
  return all;
}

TEST_F(GraphCrossings, ExportedModels) {
  const ScratchFolder folder;
  const std::string file = folder.path("model.pt2");
  const std::string command = std::string("'") + STAGECRAFT_TEST_PYTHON + "' '" + STAGECRAFT_TEST_EXPORT + "' " + file;
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  struct Case {
    const char* schedule;
    int ranks;
    Recompute recompute;
  };
  for (const Case& each : {Case{"Interleaved1F1B", 1, {}}, Case{"InterleavedZeroBubble", 1, {}},
                           Case{"InterleavedZeroBubble", 1, Recompute::every(1)}, Case{"ZB-H1", 4, {}},
                           Case{"DualPipeV", 2, Recompute::stage()}}) {
    SCOPED_TRACE(std::string(each.schedule) + (each.recompute.is_any() ? ", recomputed" : ""));
    const Pipe pipe(file, {.stages = 4});
    PipelineOptions options{.schedule = each.schedule, .stages_per_rank = 4 / each.ranks};
    options.recompute = each.recompute;
    const std::vector<at::Tensor> eager = train_exported(pipe, options, each.ranks, false);
    const std::vector<at::Tensor> graph = train_exported(pipe, options, each.ranks, true);
    ASSERT_EQ(graph.size(), eager.size());
    for (std::size_t i = 0; i < graph.size(); ++i) EXPECT_TRUE(are_same_bits(graph[i], eager[i])) << i;
  }
}

TEST_F(GraphsOfProcesses, GiveTheBitsOfTheEagerStep) {
  for (const char* schedule : {"1F1B", "ZB-H1"}) {
    for (const char* name : {"Dropout", "Skip", "SeveralOutputs"}) {
      SCOPED_TRACE(std::string(schedule) + ", " + name);
      Training run{.model = model(name), .schedule = schedule, .stages = processes(), .ranks = processes()};
      const CapturedSteps captured = compare(run);
      EXPECT_EQ(captured.graphs, 1) << captured.reason;
      EXPECT_EQ(captured.replayed, 5U) << captured.reason;
    }
  }
  Training run{.model = model("Dropout"), .schedule = "DualPipeV", .stages = 2 * processes(), .ranks = processes()};
  run.rows = [](int step) { return step % 2 == 0 ? 24 : 23; };
  run.steps = 10;
  const CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.graphs, 2) << captured.reason;
  EXPECT_EQ(captured.replayed, 8U) << captured.reason;
}

/// Nothing is read back: the host could issue all steps at once.
TEST_F(GraphsOfProcesses, DoNotRunAwayFromTheDevice) {
  Training run{.model = model("Mlp"), .schedule = "1F1B", .stages = processes(), .ranks = processes(), .steps = 120};
  run.keep_outputs = false;
  EXPECT_EQ(compare(run).replayed, 119U);
}

}  // namespace
}  // namespace stagecraft::equivalence
