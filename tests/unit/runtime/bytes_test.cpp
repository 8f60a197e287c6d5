// The bytes that a rank holds at most, counted, beside what the simulator says: sharding and recompute. Under mpirun
// processes are replicas, so that each counts its own.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "bench/counting_allocator.h"
#include "stagecraft/sim/simulator.h"
#include "stagecraft/sim/what_if.h"
#include "stagecraft/stagecraft.h"
#include "support/processes.h"

namespace stagecraft {
namespace {

constexpr int kStages = 4;
constexpr int kLayers = 4;  // of a stage
constexpr std::int64_t kWidth = 32;
constexpr std::int64_t kRows = 48;  // of a microbatch
// How far a reduction of gradients overlaps the next stage depends on the machine, not on the schedule: so many that
// the gradients of one stage are a small part of the whole.
constexpr int kMicrobatches = 48;
constexpr int kMostSteps = 12;
constexpr double kTolerance = 0.05;

/// Layers that keep their outputs and nothing else for the backward.
Stage make_layers(int index) {
  NamedTensors weights;
  for (int layer = 0; layer < kLayers; ++layer) {
    weights.emplace_back(std::to_string(index * kLayers + layer), (at::eye(kWidth) * 0.5).set_requires_grad(true));
  }
  return Stage(
      index,
      [weights](const StageCall& call) -> Value {
        at::Tensor x = call.tensor(0);
        for (const auto& [name, weight] : weights) x = at::tanh(at::matmul(x, weight));
        return x;
      },
      weights);
}

Costs costs_of(const World& world, Shard shard, bool recomputes, bool is_mixed) {
  const double parameters = 4.0 * kLayers * kWidth * kWidth;
  const double message = (is_mixed ? 2.0 : 4.0) * kRows * kWidth;
  Costs costs;
  costs.stages.assign(kStages, {.activation_memory = kLayers * message,
                                .weight_gradient_memory = kLayers * message,
                                .buffer_memory = message,
                                .parameter_memory = is_mixed ? parameters / 2 : parameters,
                                .master_memory = is_mixed ? parameters : 0,
                                .gradient_memory = parameters,
                                .optimizer_memory = parameters,
                                .input_memory = message});
  // The input of the first stage is a part of the user's batch, or a copy in another type that is made again.
  costs.stages[0].input_memory = 0;
  if (is_mixed) costs.stages[0].activation_memory += message;
  costs.memory_in_bytes = true;
  costs = with_recompute(costs, recomputes);
  return world.replicas() > 1 ? with_replicas(costs, world.replicas(), shard) : costs;
}

struct Peak {
  double counted = 0;
  double simulated = 0;
  [[nodiscard]] double ratio() const { return counted / simulated; }
};

/// The most that was held during a step, beyond what was there before the model. Messages that a slow machine has in
/// flight are not the schedule's: the least over so many steps as it takes all ranks to come close.
Peak peak_of(World& world, Shard shard, bool recomputes, bool is_mixed) {
  const at::Tensor x = at::ones({kRows * kMicrobatches, kWidth});
  const std::int64_t before = bench::held;
  std::vector<Stage> stages;
  for (int stage = 0; stage < kStages; ++stage) stages.push_back(make_layers(stage));
  PipelineOptions options = {
      .schedule = "LoopedBFS",
      .microbatches = kMicrobatches,
      .loss = [](const Value& output, const Value&, const ValueDict&) { return output.tensor().sum(); },
      .bucket_bytes = 1 << 14,
      .shard = shard};
  if (recomputes) options.recompute = Recompute::stage();
  if (is_mixed) options.precision.compute = at::kBFloat16;
  Pipeline pipeline(world, std::move(stages), options);
  Peak peak;
  peak.simulated = simulate(pipeline.schedule(), costs_of(world, shard, recomputes, is_mixed)).peak_memory();
  torch::optim::SGD optimizer(pipeline.parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9));
  pipeline.attach(optimizer);
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int step = 0; step < kMostSteps; ++step) {
    world.everyone().barrier();
    bench::most = static_cast<std::int64_t>(bench::held);
    pipeline.step({x}, {.target = x});
    optimizer.step();
    optimizer.zero_grad();
    if (step == 0) continue;  // it makes the state of the optimizer
    least = std::min<std::int64_t>(least, bench::most - before);
    peak.counted = static_cast<double>(least);
    const at::Tensor is_far = at::full({1}, std::abs(peak.ratio() - 1) > kTolerance ? 1 : 0, at::kLong);
    world.everyone().all_reduce(is_far, Reduction::kMax);
    if (is_far.item<std::int64_t>() == 0) break;
  }
  return peak;
}

void expect_simulated(World& world, Shard shard) {
  for (const bool recomputes : {false, true}) {
    for (const bool is_mixed : {false, true}) {
      const Peak peak = peak_of(world, shard, recomputes, is_mixed);
      const std::string what = "shard " + std::string(shard_name(shard)) + (recomputes ? ", recompute" : "") +
                               (is_mixed ? ", bfloat16" : "");
      std::printf("%-36s %10.0f counted %10.0f simulated %6.3f\n", what.c_str(), peak.counted, peak.simulated,
                  peak.ratio());
      EXPECT_NEAR(peak.ratio(), 1, kTolerance) << what;
    }
  }
}

TEST(CountedBytes, AreThoseOfTheSimulator) {
  bench::count_bytes();
  if (processes() > 0) {
    World world(ProcessEnvironment::transport(), at::kCPU, kPatience, /*replicas=*/processes());
    for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
      expect_simulated(world, shard);
    }
    return;
  }
  run_ranks({.ranks = 1, .threads_per_rank = 1, .timeout = kPatience},
            [](World& world) { expect_simulated(world, Shard::kNone); });
}

}  // namespace
}  // namespace stagecraft
