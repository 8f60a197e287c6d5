// The memory that a step takes on ranks that are threads and share one device: what tensors held at most, and on a GPU
// what LibTorch reserved for them. Beside it, for all ranks together, the activations that the schedule holds, in those
// of one microbatch in one stage.
//
//   memory_bench cpu|cuda LAYERS WIDTH MICROBATCHES ROWS LENGTH float|bfloat16 [RANKS]
//
// The peak of one rank is the same for 1F1B and ZB-H1, but under 1F1B only the first rank has it: with p ranks, these
// hold p, p - 1, ..., 1 activations, under ZB-H1 p each. On a device of its own every rank needs room for the peak; on
// a device that all share, 1F1B needs (p + 1) / 2 of p.

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/torch.h>

#include <cstdio>
#include <iostream>
#include <numeric>

#include "counting_allocator.h"
#include "gpu_gpt.h"
#include "stagecraft/sim/simulator.h"
#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

using namespace bench;

struct Peak {
  std::int64_t allocated = 0;
  std::int64_t reserved = 0;
};

void forget_peak(at::Device device) {
  if (device.is_cpu()) {
    most = static_cast<std::int64_t>(held);
    return;
  }
  auto* memory = at::getDeviceAllocator(device.type());
  memory->emptyCache();
  memory->resetPeakStats(device.index());
}

Peak peak_of(at::Device device) {
  if (device.is_cpu()) return {most, 0};
  const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return {stats.allocated_bytes[0].peak, stats.reserved_bytes[0].peak};
}

std::int64_t allocated_now(at::Device device) {
  if (device.is_cpu()) return held;
  return at::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes[0].current;
}

void run(const Setting& setting, sc::World& world) {
  torch::manual_seed(1);
  const at::Device device = world.device();
  const bool is_alone = setting.ranks == kStages;
  std::vector<std::shared_ptr<Part>> parts(kStages);
  std::vector<int> own;
  for (int s = world.rank().value; s < kStages; s += setting.ranks) {  // as Interleaved1F1B and 1F1B lay them
    parts[static_cast<std::size_t>(s)] = std::make_shared<Part>(setting, s, device);
    own.push_back(s);
  }
  const auto options = torch::TensorOptions(at::kLong).device(device);
  const at::Tensor input = at::randint(kVocabulary, {setting.microbatches * setting.rows, setting.length}, options);
  const at::Tensor target = at::randint(kVocabulary, input.sizes(), options);
  if (world.is_first()) {
    std::printf("%-22s %-6s %12s %14s %14s\n", "schedule", "", "activations", "allocated GB", "reserved GB");
  }
  for (const char* schedule : {is_alone ? "1F1B" : "Interleaved1F1B", is_alone ? "ZB-H1" : "InterleavedZeroBubble",
                               is_alone ? "GPipe" : "LoopedBFS"}) {
    for (const bool graph : {false, true}) {
      if (graph && device.is_cpu()) continue;
      std::vector<sc::Stage> stages;
      for (const int s : own) stages.push_back(sc::make_stage(s, parts[static_cast<std::size_t>(s)]));
      sc::Pipeline pipeline(world, std::move(stages),
                            {.schedule = schedule,
                             .stages_per_rank = kStages / setting.ranks,
                             .microbatches = setting.microbatches,
                             .loss = loss_of,
                             .graph = graph});
      std::int64_t before = 0;
      for (int step = 0; step < 4; ++step) {
        for (const int s : own) parts[static_cast<std::size_t>(s)]->zero_grad();
        if (!device.is_cpu()) torch::cuda::synchronize();
        world.everyone().barrier();
        if (world.is_first() && step < 2) {  // with what eager steps have left, the capture takes no more
          forget_peak(device);
          before = allocated_now(device);
        }
        world.everyone().barrier();
        pipeline.step({input}, {.target = target});
      }
      world.everyone().barrier();
      const std::vector<int> live = sc::peak_live_activations(pipeline.schedule());
      const Peak peak = peak_of(device);
      if (world.is_first()) {
        std::printf("%-22s %-6s %12d %14.3f %14.3f\n", schedule, graph ? "graph" : "eager",
                    std::accumulate(live.begin(), live.end(), 0), static_cast<double>(peak.allocated - before) / 1e9,
                    static_cast<double>(peak.reserved) / 1e9);
        std::fflush(stdout);
      }
      world.everyone().barrier();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<Setting> setting = argc > 1 ? Setting::of(argc - 1, argv + 1) : std::nullopt;
  if (!setting) {
    std::cerr << "usage: memory_bench cpu|cuda LAYERS WIDTH MICROBATCHES ROWS LENGTH float|bfloat16 [RANKS]\n";
    return 2;
  }
  const bool is_cuda = std::string(argv[1]) == "cuda";
  if (!is_cuda) count_bytes();
  return sc::launch(argc, argv, {.ranks = setting->ranks, .device_type = is_cuda ? at::kCUDA : at::kCPU},
                    [&](sc::World& world) { run(*setting, world); });
}
