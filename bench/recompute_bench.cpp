// What recompute costs and saves: time of a step, and bytes that this process holds at most during it, of a Sequential
// of MLP blocks with nothing recomputed, every stage, and every block. Prints one line per choice, with ratios to the
// first.
//
//   [mpirun -n 2] recompute_bench [SCHEDULE [WIDTH [BLOCKS [ROWS [MICROBATCHES]]]]]

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "counting_allocator.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

constexpr int kRounds = 7;

struct Figures {
  std::vector<double> seconds;
  std::int64_t bytes = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int position, std::int64_t otherwise) {
    return argc > position ? std::atoll(argv[position]) : otherwise;
  };
  const std::string schedule = argc > 1 ? argv[1] : "1F1B";
  const std::int64_t width = argument(2, 512);
  const std::int64_t blocks = argument(3, 8);
  const std::int64_t rows = argument(4, 256);
  const auto microbatches = static_cast<int>(argument(5, 8));
  bench::count_bytes();

  return sc::launch(argc, argv, {.ranks = 2, .threads_per_rank = 1}, [&](sc::World& world) {
    const std::vector<std::pair<const char*, sc::Recompute>> choices = {
        {"nothing", {}}, {"stages", sc::Recompute::stage()}, {"every block", sc::Recompute::every(3)}};
    std::vector<sc::Pipeline> pipelines;
    for (const auto& [name, recompute] : choices) {
      torch::nn::Sequential model;
      for (std::int64_t i = 0; i < blocks; ++i) {
        model->push_back(torch::nn::Linear(width, 4 * width));
        model->push_back(torch::nn::GELU());
        model->push_back(torch::nn::Linear(4 * width, width));
      }
      pipelines.emplace_back(
          world, model,
          sc::PipelineOptions{.schedule = schedule,
                              .microbatches = microbatches,
                              .loss = [](const at::Tensor& output,
                                         const at::Tensor& target) { return torch::mse_loss(output, target); },
                              .recompute = recompute});
    }
    const auto x = torch::randn({rows * microbatches, width});
    std::vector<Figures> all(choices.size());
    for (int round = 0; round <= kRounds; ++round) {  // in turns; the first is a warm-up
      for (std::size_t i = 0; i < choices.size(); ++i) {
        for (at::Tensor& parameter : pipelines[i].parameters()) {
          if (parameter.grad().defined()) parameter.mutable_grad().zero_();
        }
        world.everyone().barrier();
        const std::int64_t before = bench::held;
        bench::most = before;
        world.everyone().barrier();
        const double begin = sc::seconds_now();
        pipelines[i].step({x}, {.target = x});
        world.everyone().barrier();
        if (round == 0) continue;
        all[i].seconds.push_back(sc::seconds_now() - begin);
        all[i].bytes = std::max<std::int64_t>(all[i].bytes, bench::most - before);
      }
    }
    if (world.world_rank().value != 0) return;
    const double plain = sc::median(all[0].seconds);
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const double seconds = sc::median(all[i].seconds);
      std::printf("%-12s %7.1f ms %5.2f x %8.1f MiB held %5.2f x\n", choices[i].first, 1e3 * seconds, seconds / plain,
                  static_cast<double>(all[i].bytes) / (1 << 20),
                  static_cast<double>(all[i].bytes) / static_cast<double>(all[0].bytes));
    }
  });
}
