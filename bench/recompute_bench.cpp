// What recompute costs and saves: time of a step, and bytes that this process holds at most during it, of a Sequential
// of MLP blocks with nothing recomputed, every stage, and every block. Prints one line per choice, with ratios to the
// first.
//
//   [mpirun -n 2] recompute_bench [SCHEDULE [WIDTH [BLOCKS [ROWS [MICROBATCHES]]]]]

#include <c10/core/CPUAllocator.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "stagecraft/core/measurement.h"
#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

constexpr int kRounds = 7;

std::atomic<std::int64_t> held = 0;
std::atomic<std::int64_t> most = 0;

/// Counts what LibTorch takes. The size of a block stands before it.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::size_t whole = (bytes + 2 * kHeader - 1) / kHeader * kHeader;
    auto* block = static_cast<char*>(std::aligned_alloc(kHeader, whole));
    if (block == nullptr) throw std::bad_alloc();
    *reinterpret_cast<std::int64_t*>(block) = static_cast<std::int64_t>(bytes);
    const std::int64_t now = held += static_cast<std::int64_t>(bytes);
    for (std::int64_t seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    return {block + kHeader, block + kHeader, &release, c10::Device(c10::kCPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static constexpr std::size_t kHeader = 64;  // LibTorch's alignment

  static void release(void* data) {
    if (data == nullptr) return;
    char* block = static_cast<char*>(data) - kHeader;
    held -= *reinterpret_cast<std::int64_t*>(block);
    std::free(block);
  }
};

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
  static CountingAllocator counting;
  c10::SetCPUAllocator(&counting, /*priority=*/100);

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
        const std::int64_t before = held;
        most = before;
        world.everyone().barrier();
        const double begin = sc::seconds_now();
        pipelines[i].step({x}, {.target = x});
        world.everyone().barrier();
        if (round == 0) continue;
        all[i].seconds.push_back(sc::seconds_now() - begin);
        all[i].bytes = std::max<std::int64_t>(all[i].bytes, most - before);
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
