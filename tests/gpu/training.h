#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "equivalence/models.h"
#include "src/runtime/graph_device.h"
#include "stagecraft/runtime/rank_scope.h"
#include "support/processes.h"

/// Training on a GPU, eagerly and with graphs, and what is compared.
namespace stagecraft::equivalence {

/// A GPU, or what stands in for one: see tests/stand_in.
inline const at::Device kGpu = make_graph_device(at::kCPU) ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);

inline void synchronize() {
  if (kGpu.is_cuda()) torch::cuda::synchronize();
}

/// One training run, with everything that may differ between tests.
struct Training {
  Model model;
  std::string schedule = "InterleavedZeroBubble";
  int stages = 4;
  int ranks = 1;
  int replicas = 1;
  int microbatches = 4;
  int steps = 6;
  at::ScalarType type = at::kFloat;
  bool keep_outputs = true;
  std::function<std::int64_t(int step)> rows = [](int) { return 24; };
  std::function<void(PipelineOptions&)> options = [](PipelineOptions&) {};
  std::function<StageOptions(const PiecePtr&)> stage_options = [](const PiecePtr&) { return StageOptions(); };
  /// Around every step.
  std::function<void(int step, Pipeline&, const std::vector<PiecePtr>&)> before = [](auto&&...) {};
  std::function<void(int step, Pipeline&, const std::vector<PiecePtr>&)> after = [](auto&&...) {};
  /// After the update.
  std::function<void(int step, torch::optim::Optimizer&)> zero = [](int, auto& optimizer) { optimizer.zero_grad(); };
};

struct Trace {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
  CapturedSteps captured;
  void add(const std::string& name, const at::Tensor& tensor) {
    names.push_back(name);
    tensors.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
  }
};

/// One rank's part of it.
inline void train(const Training& run, GraphChoice graph, World& world, const std::vector<PiecePtr>& pieces,
                  const std::vector<std::pair<at::Tensor, at::Tensor>>& batches, Trace& trace) {
  PipelineOptions options{.schedule = run.schedule,
                          .stages_per_rank = run.stages / run.ranks,
                          .microbatches = run.microbatches,
                          .loss = [](const Value& output, const Value& target,
                                     const ValueDict&) { return (output[0].tensor() - target.tensor()).pow(2).mean(); },
                          .edges = run.model.edges(run.stages),
                          .seed = 17,
                          .graph = graph};
  run.options(options);
  const Schedule schedule = make_schedule(
      run.schedule, {.ranks = run.ranks, .stages_per_rank = run.stages / run.ranks, .microbatches = run.microbatches});
  std::vector<Stage> stages;
  for (const StageId stage : schedule.placement.stages_of(world.rank())) {
    stages.push_back(make_stage(
        stage.value, pieces[stage.index()],
        [piece = pieces[stage.index()]](const StageCall& call) { return Value(piece->run(call.arguments)); },
        run.stage_options(pieces[stage.index()])));
  }
  Pipeline pipeline(world, std::move(stages), std::move(options));
  torch::optim::AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(1e-2));
  pipeline.attach(optimizer);
  for (int step = 0; step < run.steps; ++step) {
    const std::string at = "step " + std::to_string(step) + ": ";
    const at::Tensor input = world.share_of(batches[static_cast<std::size_t>(step)].first);
    const at::Tensor target = world.share_of(batches[static_cast<std::size_t>(step)].second);
    run.before(step, pipeline, pieces);
    StepResult result;
    try {
      result = pipeline.step({input}, {.target = target, .return_outputs = run.keep_outputs});
    } catch (const std::exception&) {
      trace.add(at + "failed", {});
      optimizer.zero_grad();
      continue;
    }
    for (const at::Tensor& loss : result.losses) trace.add(at + "loss", loss);
    if (run.keep_outputs && pipeline.has_last_stage()) trace.add(at + "output", result.output[0].tensor());
    if (!pipeline.unscale_gradients()) {
      optimizer.zero_grad();
      continue;
    }
    run.after(step, pipeline, pieces);
    for (const auto& [name, parameter] : pipeline.named_parameters()) {
      trace.add(at + "gradient of " + name, parameter.grad());
    }
    optimizer.step();
    run.zero(step, optimizer);
  }
  for (const auto& [name, parameter] : pipeline.named_parameters()) trace.add(name, parameter);
  for (const Stage& stage : pipeline.stages()) {
    for (const auto& [name, buffer] : stage.buffers()) trace.add(name, buffer);
  }
  trace.captured = pipeline.captured();
}

/// Trains on all ranks, and returns what each left behind, by rank of the world. Where ranks are processes, only the
/// own one has anything.
inline std::vector<Trace> train(const Training& run, GraphChoice graph) {
  torch::manual_seed(5);
  std::vector<std::vector<PiecePtr>> pieces(static_cast<std::size_t>(run.replicas));  // by replica
  for (std::vector<PiecePtr>& copies : pieces) {
    for (int s = 0; s < run.stages; ++s) {
      copies.push_back(run.model.make(s, run.stages));
      copies.back()->to(kGpu, run.type);
    }
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> batches;
  for (int step = 0; step < run.steps; ++step) {
    const at::Tensor input = run.model.input(run.rows(step)).to(kGpu, run.type);
    batches.emplace_back(input, at::randn_like(input));
  }
  synchronize();
  std::vector<Trace> traces(static_cast<std::size_t>(run.ranks * run.replicas));
  const auto part = [&](World& world) {
    train(run, graph, world, pieces[static_cast<std::size_t>(world.replica())], batches,
          traces[world.world_rank().index()]);
  };
  if (processes() > 0) {
    const RankScope scope(kGpu, 1);
    World world(ProcessEnvironment::transport(), scope.device(), std::chrono::seconds(60), run.replicas);
    part(world);
    synchronize();
    return traces;
  }
  run_ranks({.ranks = run.ranks,
             .replicas = run.replicas,
             .device = [](RankId) { return kGpu; },
             .timeout = std::chrono::seconds(20)},
            part);
  synchronize();
  return traces;
}

inline bool are_same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.cpu().contiguous();
  const at::Tensor y = b.cpu().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

inline void expect_same_bits(const Trace& got, const Trace& expected) {
  ASSERT_EQ(got.names, expected.names);
  int different = 0;
  for (std::size_t i = 0; i < got.names.size() && different < 5; ++i) {
    const bool same = are_same_bits(got.tensors[i], expected.tensors[i]);
    if (!same) ++different;
    EXPECT_TRUE(same) << got.names[i];
  }
}

/// Runs it eagerly and with graphs; returns what was captured on the last rank of this process.
inline CapturedSteps compare(const Training& run) {
  const std::vector<Trace> eager = train(run, false);
  const std::vector<Trace> graph = train(run, true);
  for (std::size_t rank = 0; rank < eager.size(); ++rank) expect_same_bits(graph[rank], eager[rank]);
  const auto here = std::find_if(graph.rbegin(), graph.rend(), [](const Trace& own) { return !own.names.empty(); });
  return here->captured;
}

inline const Model& model(const std::string& name) {
  static const std::vector<Model> all = models();
  return *std::find_if(all.begin(), all.end(), [&](const Model& one) { return one.name == name; });
}

/// A test that was asked for and cannot run has failed.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(kGpu.is_cpu() || torch::cuda::is_available()) << "LibTorch sees no GPU"; }
};

/// With mpirun or support/start_processes.py, 2 or 4 processes on one GPU: the rest of this program is for one process.
class GraphsOfProcesses : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    ASSERT_GT(processes(), 1) << "start it with mpirun -n 2, and STAGECRAFT_TEST_DEVICE=cuda";
  }
};

}  // namespace stagecraft::equivalence
