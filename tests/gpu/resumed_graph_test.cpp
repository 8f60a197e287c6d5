// Runs on a GPU that are stopped, loaded by new pipelines and go on, with steps as graphs: the bits of an eager run
// that never stopped. Needs a GPU: `make test-gpu`.

#include "stagecraft/checkpoint/checkpoint.h"
#include "support/scratch_folder.h"
#include "training.h"

namespace stagecraft::equivalence {
namespace {

constexpr int kStepsOfRun = 8;
constexpr int kStopsAfter = 4;

/// Losses and, at the end, parameters of this rank.
std::vector<at::Tensor> run_and_resume(World& world, const std::string& folder, bool graph, bool stops) {
  std::vector<at::Tensor> trace;
  const int ranks = world.size();
  const std::string path = world.everyone().broadcast({{}, folder + "/model.safetensors"}, 0).header;
  int step = 0;
  const auto go_on = [&](int until, double seed) {
    const PiecePtr piece = model("Dropout").make(world.rank().value, ranks);
    {
      const at::NoGradGuard no_graph;
      for (const at::Tensor& parameter : piece->parameters()) {
        parameter.copy_((at::arange(parameter.numel(), at::kFloat) * 0.7 + seed).sin().view_as(parameter) * 0.3);
      }
    }
    piece->to(kGpu);
    std::vector<Stage> stages;
    stages.push_back(make_stage(
        world.rank().value, piece, [piece](const StageCall& call) { return Value(piece->run(call.arguments)); }, {},
        std::to_string(world.rank().value)));
    Pipeline pipeline(
        world, std::move(stages),
        PipelineOptions{.schedule = "ZB-H1",
                        .microbatches = 2 * ranks,
                        .loss = [](const Value& output, const Value& target,
                                   const ValueDict&) { return (output[0].tensor() - target.tensor()).pow(2).mean(); },
                        .seed = 9,
                        .graph = graph});
    torch::optim::AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(1e-2));
    if (step > 0) {
      EXPECT_EQ(load_checkpoint(world, pipeline, path, {.optimizer = &optimizer}), step);
    }
    for (; step < until; ++step) {
      const at::Tensor x = (at::arange(24 * kWidth, at::kFloat) * 0.37 + step).sin().view({24, kWidth}).to(kGpu);
      for (const at::Tensor& loss : pipeline.step({x}, {.target = -x}).losses) trace.push_back(loss.clone());
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(pipeline.captured().eager, graph ? 1U : 0U) << pipeline.captured().reason;
    if (until < kStepsOfRun) {
      save_checkpoint(world, pipeline, path, {.optimizer = &optimizer, .step = step});
    } else {
      for (const at::Tensor& parameter : pipeline.parameters()) trace.push_back(parameter.detach().clone());
    }
  };
  if (stops) go_on(kStopsAfter, 5);
  go_on(kStepsOfRun, stops ? 6 : 5);  // loading replaces other weights
  return trace;
}

void expect_the_run_that_never_stopped(World& world, const std::string& folder) {
  const std::vector<at::Tensor> expected = run_and_resume(world, folder, /*graph=*/false, /*stops=*/false);
  const std::vector<at::Tensor> got = run_and_resume(world, folder, /*graph=*/true, /*stops=*/true);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(are_same_bits(got[i], expected[i])) << i;
}

class ResumedGraphs : public OnGpu {};

TEST_F(ResumedGraphs, OfThreadsGoOn) {
  const ScratchFolder folder;
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    run_ranks({.ranks = ranks, .device = [](RankId) { return kGpu; }},
              [&](World& world) { expect_the_run_that_never_stopped(world, folder.path("")); });
  }
}

TEST_F(GraphsOfProcesses, GoOnWhenTheyAreResumed) {
  const ScratchFolder folder;
  const RankScope scope(kGpu, 1);
  World world(ProcessEnvironment::transport(), scope.device(), std::chrono::seconds(60));
  expect_the_run_that_never_stopped(world, folder.path(""));
}

}  // namespace
}  // namespace stagecraft::equivalence
