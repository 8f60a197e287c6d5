// A training step of a GPT, four stages on one rank of a GPU: eager, replayed as a graph, and a bare loop over the same
// modules, microbatch by microbatch, captured by hand. Called by gpu_step_bench.py. All run in one process, in turns;
// the best turn counts. Prints one line of JSON.
//
// With several ranks, as threads on one GPU, there is no bare loop.
//
//   gpu_step_bench LAYERS WIDTH MICROBATCHES ROWS LENGTH float|bfloat16 [RANKS]

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/torch.h>

#include <chrono>
#include <iostream>
#include <sstream>
#include <string>

#include "gpu_gpt.h"
#include "graph_device.h"
#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

using namespace bench;

template <typename Step>
double milliseconds(int steps, const Step& step) {
  torch::cuda::synchronize();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) step();
  torch::cuda::synchronize();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / steps;
}

void run(const Setting& setting, sc::World& world) {
  torch::manual_seed(1);
  const at::Device device = world.device();
  std::vector<std::shared_ptr<Part>> parts;  // stages s, s + ranks, ...: as Interleaved1F1B and 1F1B lay them
  for (int s = world.rank().value; s < kStages; s += setting.ranks) {
    parts.push_back(std::make_shared<Part>(setting, s, device));
  }
  const auto options = torch::TensorOptions(at::kLong).device(device);
  const at::Tensor input = at::randint(kVocabulary, {setting.microbatches * setting.rows, setting.length}, options);
  const at::Tensor target = at::randint(kVocabulary, input.sizes(), options);
  auto* memory = at::getDeviceAllocator(at::kCUDA);
  const auto zero = [&] {
    for (const auto& part : parts) part->zero_grad();
  };

  // Takes turns of the steps of one subject; returns the best.
  const auto best_of = [&](const auto& step) {
    for (int i = 0; i < 3; ++i) step();
    const at::Tensor guess = at::scalar_tensor(milliseconds(1, step), at::kDouble);
    world.everyone().all_reduce(guess, sc::Reduction::kMax);  // all ranks run the same number of steps
    const int steps = std::clamp(static_cast<int>(300 / guess.item<double>()), 1, 10);
    double best = 1e9;
    for (int turn = 0; turn < (steps > 1 ? 5 : 3); ++turn) best = std::min(best, milliseconds(steps, step));
    return best;
  };
  std::ostringstream line;
  const bool is_interleaved = setting.ranks < kStages;
  for (const char* schedule :
       {is_interleaved ? "Interleaved1F1B" : "1F1B", is_interleaved ? "InterleavedZeroBubble" : "ZB-H1"}) {
    for (const bool graph : {false, true}) {
      zero();
      if (world.is_first()) {
        memory->emptyCache();
        memory->resetPeakStats(device.index());
      }
      std::vector<sc::Stage> stages;
      for (int s = world.rank().value; const auto& part : parts) {
        stages.push_back(sc::make_stage(s, part));
        s += setting.ranks;
      }
      sc::Pipeline pipeline(world, std::move(stages),
                            {.schedule = schedule,
                             .stages_per_rank = kStages / setting.ranks,
                             .microbatches = setting.microbatches,
                             .loss = loss_of,
                             .graph = graph});
      const double best = best_of([&] {
        zero();
        pipeline.step({input}, {.target = target});
      });
      if (graph && !pipeline.captured().last_was_replayed) std::cerr << pipeline.captured().reason << "\n";
      const auto stats = memory->getDeviceStats(device.index());
      const std::string name = std::string(schedule) + (graph ? " graph" : " eager");
      line << "\"" << name << "\": " << best << ", \"" << name
           << " GB\": " << static_cast<double>(stats.reserved_bytes[0].peak) / 1e9 << ", ";
    }
  }
  if (setting.ranks > 1) {
    if (world.is_last()) std::cout << "{" << line.str() << "\"ranks\": " << setting.ranks << "}\n";
    return;
  }
  // The bare loop.
  const auto loop = [&] {
    const auto inputs = input.chunk(setting.microbatches);
    const auto targets = target.chunk(setting.microbatches);
    for (std::size_t m = 0; m < inputs.size(); ++m) {
      at::Tensor x = inputs[m];
      for (const auto& part : parts) x = part->forward(x);
      (loss_of(x, targets[m]) / setting.microbatches).backward();
    }
  };
  zero();
  memory->emptyCache();
  const double bare = best_of([&] {
    zero();
    loop();
  });
  zero();
  const auto graphs = sc::make_graph_device(device);
  const auto graph = graphs->capture(loop, /*makes_room=*/true);
  const double replayed = best_of([&] { graph->replay(); });
  std::cout << "{" << line.str() << "\"bare eager\": " << bare << ", \"bare graph\": " << replayed << "}\n";
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<Setting> setting = Setting::of(argc, argv);
  if (!setting) {
    std::cerr << "usage: gpu_step_bench LAYERS WIDTH MICROBATCHES ROWS LENGTH float|bfloat16 [RANKS]\n";
    return 2;
  }
  return sc::launch(argc, argv, {.ranks = setting->ranks, .device_type = at::kCUDA},
                    [&](sc::World& world) { run(*setting, world); });
}
