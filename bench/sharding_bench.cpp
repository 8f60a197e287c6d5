// Two ranks with two replicas that share nothing, the optimizer's state, gradients or parameters: how much of the
// gatherings and reductions is hidden behind compute, from the timelines, and the bytes that LibTorch holds at most.
// Prints one line of JSON per kind; bytes are those of this process, which under mpirun is one rank.
//
//   [mpirun -n 4] sharding_bench [WIDTH [STAGES_PER_RANK [ROWS [MICROBATCHES]]]]

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "counting_allocator.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

constexpr int kSteps = 8;
constexpr int kWarmUp = 2;

/// Work beside the schedule, in seconds: of a kind that later compute could hide, and what the rank waited for it.
struct Beside {
  double hideable = 0;
  double waited = 0;

  void add(const sc::Timeline& timeline, sc::ActionKind kind) {
    for (const sc::Span& span : timeline) {
      if (!span.beside || span.action.kind() != kind) continue;
      // A gathering before the first compute has nothing to hide behind, nor has a reduction after the last.
      const auto computes = [&](const sc::Span& other) {
        if (!sc::is_compute(other.action.kind())) return false;
        return kind == sc::ActionKind::kUnshard ? other.start < span.start : other.end > span.start;
      };
      if (std::none_of(timeline.begin(), timeline.end(), computes)) continue;
      hideable += span.end - span.start;
      waited += std::min(span.waited, span.end - span.start);
    }
  }
  [[nodiscard]] double hidden() const { return hideable > 0 ? 1 - waited / hideable : 1; }
};

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int position, std::int64_t otherwise) {
    return argc > position ? std::atoll(argv[position]) : otherwise;
  };
  const std::int64_t width = argument(1, 512);
  const auto per_rank = static_cast<int>(argument(2, 4));
  const auto microbatches = static_cast<int>(argument(4, 8));
  const std::int64_t rows = argument(3, 256) * microbatches;
  bench::count_bytes();
  return sc::launch(argc, argv, {.ranks = 2, .replicas = 2, .threads_per_rank = 1}, [&](sc::World& world) {
    for (const auto& [name, shard] : {std::pair("none", sc::Shard::kNone),
                                      {"optimizer", sc::Shard::kOptimizer},
                                      {"gradients", sc::Shard::kGradients},
                                      {"parameters", sc::Shard::kParameters}}) {
      world.everyone().barrier();
      const std::int64_t before = bench::held;
      world.everyone().barrier();
      sc::LazyLayers model;
      for (int stage = 0; stage < 2 * per_rank; ++stage) {
        model.add([width] { return torch::nn::Linear(width, 2 * width); });
        model.add([] { return torch::nn::ReLU(); });
        model.add([width] { return torch::nn::Linear(2 * width, width); });
      }
      sc::Pipeline pipeline(
          world, model,
          {.schedule = "LoopedBFS",
           .stages_per_rank = per_rank,
           .microbatches = microbatches,
           .loss = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); },
           .shard = shard});
      torch::optim::AdamW optimizer(pipeline.parameters());
      pipeline.attach(optimizer);
      pipeline.record_timeline(true);
      const auto x = torch::ones({rows, width});
      Beside unshards;
      Beside reductions;
      std::vector<double> seconds;
      for (int step = 0; step < kSteps + kWarmUp; ++step) {
        world.everyone().barrier();
        if (step == kWarmUp) bench::most = static_cast<std::int64_t>(bench::held);
        const double begin = sc::seconds_now();
        pipeline.step({x}, {.target = x});
        if (step >= kWarmUp) {
          seconds.push_back(sc::seconds_now() - begin);
          unshards.add(pipeline.timeline(), sc::ActionKind::kUnshard);
          reductions.add(pipeline.timeline(), sc::ActionKind::kReduceGrad);
        }
        optimizer.step();
        optimizer.zero_grad();
      }
      world.everyone().barrier();
      const std::int64_t bytes = bench::most - before;
      const at::Tensor all = torch::tensor(
          {unshards.hideable, unshards.waited, reductions.hideable, reductions.waited, sc::median(seconds)},
          at::kDouble);
      world.everyone().all_reduce(all, sc::Reduction::kMean);
      if (world.world_rank().value != 0) continue;
      const double* mean = all.const_data_ptr<double>();
      const std::int64_t of_stage = 4 * (4 * width * width + 3 * width);
      std::printf(
          "{\"shard\": \"%s\", \"step\": %.6f, \"unshard_hidden\": %.4f, \"reduce_hidden\": %.4f, \"bytes\": %lld, "
          "\"stage_bytes\": %lld, \"stages\": %d}\n",
          name, mean[4], Beside{mean[0], mean[1]}.hidden(), Beside{mean[2], mean[3]}.hidden(),
          static_cast<long long>(bytes), static_cast<long long>(of_stage), per_rank);
      std::fflush(stdout);
    }
  });
}
