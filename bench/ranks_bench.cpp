// What a step costs, and what a rank takes of memory, by number of ranks.
//
//   ranks_bench                     ranks as threads: 16, 32, 64, 128, 256
//   mpirun -n N ranks_bench         ranks as processes
//
// Measures a step without work, one in which every rank sends a small message to the next, and one of a pipeline with a
// small stage per rank and eight microbatches. If the cost is linear in the ranks, the time per step and rank stays the
// same; so does the memory per rank if it does not depend on their number.

#include <torch/torch.h>

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "stagecraft/core/measurement.h"
#include "stagecraft/runtime/together.h"
#include "stagecraft/stagecraft.h"
#include "stagecraft/transport/mpi.h"

namespace sc = stagecraft;

namespace {

/// Memory of this process that is in use, in KiB.
double resident() {
  double pages = 0;
  std::ifstream("/proc/self/statm").ignore(64, ' ') >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1024;
}

/// `step` ends as a step does, on all ranks together.
void measure_alone(sc::World& world, const char* what, const std::function<void()>& step) {
  constexpr int kRounds = 5;
  const int steps = std::max(20, 2000 / world.size());
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    sc::together(world, [] {});
    const double begin = sc::seconds_now();
    for (int i = 0; i < steps; ++i) step();
    best = std::min(best, (sc::seconds_now() - begin) / steps);
  }
  if (!world.is_first()) return;
  std::printf("%5d ranks  %-12s %9.1f us per step  %6.2f us per step and rank\n", world.size(), what, best * 1e6,
              best * 1e6 / world.size());
  std::fflush(stdout);
}

void measure(sc::World& world, const char* what, const std::function<void()>& work) {
  measure_alone(world, what, [&] { sc::together(world, work); });
}

/// `before`: memory of the process before it had ranks.
void measure_all(sc::World& world, double before) {
  measure(world, "empty", [] {});
  const int size = world.size();
  const sc::RankId next((world.rank().value + 1) % size), previous((world.rank().value + size - 1) % size);
  const sc::Tag tag{sc::MessageKind::kForward, sc::StageId(0), sc::StageId(1), sc::MicrobatchId(0)};
  const at::Tensor tensor = at::ones({64});
  measure(world, "one message", [&] {
    world.transport().send(next, tag, {{tensor}, ""});
    world.transport().receive(previous, tag, world.timeout());
  });
  constexpr std::int64_t kWidth = 16;
  constexpr int kMicrobatches = 8;
  sc::Pipeline pipeline(
      world, {sc::make_stage(world.rank().value, torch::nn::Linear(kWidth, kWidth))},
      {.schedule = "1F1B",
       .microbatches = kMicrobatches,
       .loss = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); }});
  const at::Tensor batch = torch::ones({2 * kMicrobatches, kWidth});
  measure_alone(world, "1F1B", [&] { pipeline.step({batch}, {.target = batch}); });
  at::Tensor growth = at::full({}, resident() - before, at::kDouble);
  if (sc::is_started_by_mpi()) {
    world.everyone().all_reduce(growth, sc::Reduction::kMax);
  } else {
    growth /= size;
  }
  if (world.is_first()) std::printf("%5d ranks  %-12s %9.0f KiB per rank\n", size, "memory", growth.item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  sc::LaunchOptions options{.threads_per_rank = 1, .timeout = std::chrono::minutes(2)};
  if (sc::is_started_by_mpi()) {
    return sc::launch(argc, argv, options, [](sc::World& world) { measure_all(world, resident()); });
  }
  for (const int ranks : {16, 32, 64, 128, 256}) {
    options.ranks = ranks;
    const double before = resident();
    const int code = sc::launch(argc, argv, options, [&](sc::World& world) { measure_all(world, before); });
    if (code != 0) return code;
  }
  return 0;
}
