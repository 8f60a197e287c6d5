// Steps as graphs together with other features: always the bits of the eager step. Needs a GPU: `make test-gpu`.

#include <cstdlib>
#include <map>

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

/// Masters, and what replicas share of them: parameters are gathered between graphs, gradients reduced after them.
TEST_F(GraphCrossings, ReplicasThatShareTheOptimizer) {
  for (const auto type : {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
    for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients}) {
      for (const auto& [schedule, ranks] : {std::pair("InterleavedZeroBubble", 1), {"ZBVZeroBubble", 2}}) {
        for (const int accumulate : {1, 3}) {
          SCOPED_TRACE(std::string(schedule) + (type ? ", bfloat16" : "") + ", shard " +
                       std::to_string(static_cast<int>(shard)) + ", " + std::to_string(accumulate) + " steps");
          Training run{.model = model("Dropout"), .schedule = schedule, .ranks = ranks, .replicas = 2, .steps = 12};
          run.options = [&](PipelineOptions& options) {
            options.shard = shard;
            options.precision.compute = type;
            options.accumulate = accumulate;
            options.bucket_bytes = 64;
            if (shard == Shard::kOptimizer) options.passes = kShardedLowering;
          };
          run.zero = [&](int step, auto& optimizer) {
            if (step % accumulate == accumulate - 1) optimizer.zero_grad();
          };
          const bool adds_up = accumulate > 1 && shard != Shard::kGradients;  // a kind of steps more
          EXPECT_EQ(compare(run).replayed, adds_up ? 10U : 11U);
        }
      }
    }
  }
}

/// One replica replays while the other runs eagerly: what is gathered and reduced has one order.
TEST_F(GraphCrossings, ReplicasThatShareTheOptimizerAndOfWhichOneIsEager) {
  for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients}) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE("shard " + std::to_string(static_cast<int>(shard)) + ", ranks " + std::to_string(ranks));
      int made = 0;
      std::map<const Piece*, int> numbers;
      Training run{.model = model("Dropout"), .schedule = "InterleavedZeroBubble", .ranks = ranks, .replicas = 2};
      run.model.make = [&, make = run.model.make](int stage, int stages) {
        const PiecePtr piece = make(stage, stages);
        numbers[piece.get()] = made++ / stages % 2;
        return piece;
      };
      run.steps = 14;
      run.options = [&](PipelineOptions& options) {
        options.shard = shard;
        options.precision.compute = at::kBFloat16;
        options.passes = kShardedLowering;
      };
      run.before = [&](int step, Pipeline& pipeline, const std::vector<PiecePtr>& pieces) {
        if (numbers.at(pieces[0].get()) == 0) return;
        if (step % 7 == 3) pipeline.on(ActionKind::kForward, [](const ActionContext& context) { context.run(); });
        if (step % 7 == 5) pipeline.on(ActionKind::kForward, {});
      };
      EXPECT_EQ(compare(run).replayed, 9U);
    }
  }
}

/// Statistics over all replicas, in the forward: a capture of one must not wait for the other's.
TEST_F(GraphCrossings, CollectivesInAForwardStayEager) {
  for (const bool graph : {false, true}) {
    std::mutex mutex;
    std::vector<CapturedSteps> captured;
    run_ranks({.ranks = 1, .replicas = 2, .device = [](RankId) { return kGpu; }, .timeout = std::chrono::seconds(20)},
              [&](World& world) {
                auto layer = std::make_shared<torch::nn::LinearImpl>(kWidth, kWidth);
                layer->to(kGpu);
                std::vector<Stage> stages;
                stages.push_back(make_stage(0, layer, [&, layer](const StageCall& call) -> Value {
                  const at::Tensor y = layer->forward(call.tensor(0));
                  at::Tensor mean = y.detach().mean(0);
                  world.peers().all_reduce(mean, Reduction::kMean);
                  return y - mean;
                }));
                Pipeline pipeline(world, std::move(stages),
                                  {.schedule = "GPipe",
                                   .microbatches = 2,
                                   .loss = [](const at::Tensor& output,
                                              const at::Tensor& target) { return (output - target).pow(2).mean(); },
                                   .graph = graph});
                const at::Tensor x = at::full({4, kWidth}, world.replica() + 1.0, at::TensorOptions(kGpu));
                for (int step = 0; step < 6; ++step) {
                  const at::Tensor loss = pipeline.step({x}, {.target = x}).losses.at(0);
                  EXPECT_TRUE(std::isfinite(loss.item<double>()));
                }
                const std::lock_guard lock(mutex);
                captured.push_back(pipeline.captured());
              });
    for (const CapturedSteps& one : captured) {
      EXPECT_EQ(one.replayed, 0U);
      EXPECT_THAT(one.reason, testing::HasSubstr(graph ? "takes part in a collective" : ""));
    }
  }
}

TEST_F(GraphCrossings, ReplicasThatShareParametersStayEager) {
  Training run{.model = model("Mlp"), .replicas = 2};
  run.options = [](PipelineOptions& options) { options.shard = Shard::kParameters; };
  const CapturedSteps captured = compare(run);
  EXPECT_EQ(captured.replayed, 0U);
  EXPECT_THAT(captured.reason, testing::HasSubstr("parameters are freed"));
}

TEST_F(GraphCrossings, EvaluationBetweenStepsOfSeveralRanks) {
  Training run{.model = model("BatchNorm"), .schedule = "1F1B", .stages = 4, .ranks = 4, .steps = 10};
  run.after = [](int step, Pipeline& pipeline, const std::vector<PiecePtr>&) {
    if (step % 3 == 1) pipeline.eval({at::ones({10, kWidth}, at::TensorOptions(kGpu))});
  };
  EXPECT_EQ(compare(run).replayed, 9U);
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

/// Losses and outputs, kept as they came, gradients of the last step, parameters and buffers. Steps of two sizes take
/// turns.
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
      const std::int64_t rows = step % 4 == 2 ? 16 : 24;
      const StepResult result =
          pipeline.step({x.narrow(0, 0, rows)}, {.target = y.narrow(0, 0, rows), .return_outputs = true});
      for (const at::Tensor& loss : result.losses) trace.push_back(loss);
      if (pipeline.has_last_stage()) trace.push_back(result.output.tensor());
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
    EXPECT_EQ(pipeline.captured().replayed, graph ? 6U : 0U) << pipeline.captured().reason;
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

TEST_F(GraphsOfProcesses, ShareTheOptimizer) {
  for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients}) {
    SCOPED_TRACE("shard " + std::to_string(static_cast<int>(shard)));
    Training run{.model = model("Dropout"), .ranks = processes() / 2, .replicas = 2, .steps = 12};
    run.options = [&](PipelineOptions& options) {
      options.shard = shard;
      options.precision.compute = at::kBFloat16;
      options.accumulate = 2;
    };
    run.zero = [](int step, auto& optimizer) {
      if (step % 2 == 1) optimizer.zero_grad();
    };
    EXPECT_EQ(compare(run).replayed, shard == Shard::kGradients ? 11U : 10U);
  }
}

/// Nothing is read back: the host could issue all steps at once.
TEST_F(GraphsOfProcesses, DoNotRunAwayFromTheDevice) {
  Training run{.model = model("Mlp"), .schedule = "1F1B", .stages = processes(), .ranks = processes(), .steps = 120};
  run.keep_outputs = false;
  EXPECT_EQ(compare(run).replayed, 119U);
}

}  // namespace
}  // namespace stagecraft::equivalence
