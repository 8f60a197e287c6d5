// Checkpoints in the background: the time of a training step while a file is written against one without, and the time
// that `save` takes against that of copying as many bytes. Prints one line of JSON.
//
//   [mpirun -n 2] save_bench WIDTH LAYERS_PER_RANK ROWS MICROBATCHES FOLDER
//
// FOLDER is made, and its checkpoints are removed at the end.

#include <sys/stat.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

constexpr int kSaves = 8;
constexpr int kStepsPerSave = 12;
constexpr int kStepsWithout = 24;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <typename Call>
double seconds_of(const Call& call) {
  const double begin = now();
  call();
  return now() - begin;
}

double median(std::vector<double> times) {
  if (times.empty()) return 0;
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

/// Copies as many bytes as one rank saves, on all ranks at the same time; in memory that has been used before.
double time_of_memcpy(sc::World& world, std::size_t bytes) {
  const std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes, 2);
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    world.everyone().barrier();
    times.push_back(seconds_of([&] { std::memcpy(to.data(), from.data(), bytes); }));
    if (to[bytes / 2] != 1) std::abort();
  }
  return median(times);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::cerr << "usage: save_bench WIDTH LAYERS_PER_RANK ROWS MICROBATCHES FOLDER\n";
    return 2;
  }
  const std::int64_t width = std::atoll(argv[1]);
  const int layers = std::atoi(argv[2]);
  const int microbatches = std::atoi(argv[4]);
  const std::int64_t rows = std::atoll(argv[3]) * microbatches;
  const std::string folder = argv[5];
  return sc::launch(argc, argv, {.ranks = 2, .threads_per_rank = 1}, [&](sc::World& world) {
    torch::nn::Sequential stage;
    for (int i = 0; i < layers; ++i) {
      stage->push_back(torch::nn::Linear(width, width));
      stage->push_back(torch::nn::Tanh());
    }
    const int rank = world.rank().value;
    sc::Pipeline pipeline(
        world, {sc::make_stage(rank, stage, {}, std::to_string(rank))},
        {.microbatches = microbatches,
         .loss = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); }});
    torch::optim::Adam optimizer(pipeline.parameters(), 1e-4);
    const auto x = torch::ones({rows, width});
    const auto step = [&] {
      return seconds_of([&] {
        pipeline.step({x}, {.target = x});
        optimizer.step();
        optimizer.zero_grad();
      });
    };
    for (int i = 0; i < 3; ++i) step();
    std::vector<double> without, during, calls, files;
    sc::Checkpoints checkpoints(world, {.folder = folder, .keep = 1});
    for (int save = 0; save <= kSaves; ++save) {
      for (int i = 0; i < kStepsWithout / kSaves; ++i) without.push_back(step());
      world.everyone().barrier();
      const double begin = now();
      const double call = seconds_of([&] { checkpoints.save(pipeline, {.optimizer = &optimizer, .step = save}); });
      const std::string path = folder + "/step-" + std::to_string(save) + ".safetensors";
      std::vector<double> meanwhile;
      bool is_there = false;
      for (int i = 0; i < kStepsPerSave; ++i) {
        const double time = step();
        is_there = is_there || ::access(path.c_str(), F_OK) == 0;
        if (!is_there) meanwhile.push_back(time);
      }
      checkpoints.wait();
      if (save == 0) continue;  // the first one allocates
      calls.push_back(call);
      files.push_back(now() - begin);
      during.insert(during.end(), meanwhile.begin(), meanwhile.end());
    }
    std::int64_t elements = 0;
    for (const at::Tensor& parameter : pipeline.parameters()) elements += parameter.numel();
    const auto bytes = static_cast<std::size_t>(elements) * sizeof(float) * 3;  // weights and two moments
    const double memcpy_time = time_of_memcpy(world, bytes);
    if (world.world_rank().value != 0) return;
    ::unlink((folder + "/step-" + std::to_string(kSaves) + ".safetensors").c_str());
    std::cout << "{\"step\": " << median(without) << ", \"step_while_saving\": " << median(during)
              << ", \"ratio\": " << median(during) / median(without) << ", \"steps_while_saving\": " << during.size()
              << ", \"save\": " << median(calls) << ", \"bytes_per_rank\": " << bytes << ", \"memcpy\": " << memcpy_time
              << ", \"save_over_memcpy\": " << median(calls) / memcpy_time << "}" << std::endl;
  });
}
