// The cost of ending a step, by number of ranks.
//
//   ranks_bench                     ranks as threads: 16, 32, 64, 128, 256
//   mpirun -n N ranks_bench         ranks as processes
//
// Measures a step without work, and one in which every rank sends a small message to the next. If the cost is linear in
// the ranks, the time per step and rank stays the same.

#include <torch/torch.h>

#include <cstdio>

#include "stagecraft/core/clock.h"
#include "stagecraft/runtime/together.h"
#include "stagecraft/stagecraft.h"
#include "stagecraft/transport/mpi.h"

namespace sc = stagecraft;

namespace {

void measure(sc::World& world, const char* what, const std::function<void()>& work) {
  constexpr int kRounds = 5;
  const int steps = std::max(20, 2000 / world.size());
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    sc::together(world, [] {});
    const double begin = sc::seconds_now();
    for (int i = 0; i < steps; ++i) sc::together(world, work);
    best = std::min(best, (sc::seconds_now() - begin) / steps);
  }
  if (!world.is_first()) return;
  std::printf("%5d ranks  %-12s %9.1f us per step  %6.2f us per step and rank\n", world.size(), what, best * 1e6,
              best * 1e6 / world.size());
  std::fflush(stdout);
}

void measure_all(sc::World& world) {
  measure(world, "empty", [] {});
  const int size = world.size();
  const sc::RankId next((world.rank().value + 1) % size), previous((world.rank().value + size - 1) % size);
  const sc::Tag tag{sc::MessageKind::kForward, sc::StageId(0), sc::StageId(1), sc::MicrobatchId(0)};
  const at::Tensor tensor = at::ones({64});
  measure(world, "one message", [&] {
    world.transport().send(next, tag, {{tensor}, ""});
    world.transport().receive(previous, tag, world.timeout());
  });
}

}  // namespace

int main(int argc, char** argv) {
  sc::LaunchOptions options{.threads_per_rank = 1, .timeout = std::chrono::minutes(2)};
  if (sc::is_started_by_mpi()) return sc::launch(argc, argv, options, measure_all);
  for (const int ranks : {16, 32, 64, 128, 256}) {
    options.ranks = ranks;
    const int code = sc::launch(argc, argv, options, measure_all);
    if (code != 0) return code;
  }
  return 0;
}
