// A pipeline of 2 ranks with 2 replicas: how much of the gradient all-reduce overlaps with compute, from the timelines.
// Prints one line of JSON.
//
//   [mpirun -n 4] replicas_bench SCHEDULE STAGES_PER_RANK WIDTH ROWS MICROBATCHES

#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

constexpr int kSteps = 12;
constexpr int kWarmUp = 2;

/// Sums over all gradient averagings on one rank, in seconds.
struct Sums {
  double averaging = 0;       // of those that start before the last compute
  double waited = 0;          // the part of it that the rank waited
  double last_averaging = 0;  // of those that start after
  double step = 0;
};

bool computes_after(const sc::Timeline& timeline, double time) {
  return std::any_of(timeline.begin(), timeline.end(),
                     [&](const sc::Span& span) { return sc::is_compute(span.action.kind()) && span.start > time; });
}

void add(Sums& sums, const sc::Timeline& timeline) {
  for (const sc::Span& span : timeline) {
    if (!span.beside) continue;
    if (computes_after(timeline, span.start)) {
      sums.averaging += span.end - span.start;
      sums.waited += span.waited;
    } else {
      sums.last_averaging += span.end - span.start;
    }
  }
  sums.step += timeline.back().end - timeline.front().start;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::cerr << "usage: replicas_bench SCHEDULE STAGES_PER_RANK WIDTH ROWS MICROBATCHES\n";
    return 2;
  }
  const std::string schedule = argv[1];
  const int per_rank = std::atoi(argv[2]);
  const std::int64_t width = std::atoll(argv[3]);
  const int microbatches = std::atoi(argv[5]);
  const std::int64_t rows = std::atoll(argv[4]) * microbatches;
  return sc::launch(argc, argv, {.ranks = 2, .replicas = 2, .threads_per_rank = 1}, [&](sc::World& world) {
    std::vector<sc::Stage> stages;
    for (const sc::StageId stage : sc::stages_here(world, schedule, per_rank)) {
      stages.push_back(sc::make_stage(
          stage.value,
          torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::ReLU(), torch::nn::Linear(width, width))));
    }
    sc::Pipeline pipeline(world, std::move(stages),
                          {.schedule = schedule,
                           .microbatches = microbatches,
                           .loss = [](const sc::Value& output, const sc::Value& target, const sc::ValueDict&) {
                             return torch::mse_loss(output.tensor(), target.tensor());
                           }});
    pipeline.record_timeline(true);
    const auto x = torch::ones({rows, width});
    Sums sums;
    for (int step = 0; step < kSteps + kWarmUp; ++step) {
      pipeline.step({x}, {.target = x});
      if (step >= kWarmUp) add(sums, pipeline.timeline());
      for (auto& parameter : pipeline.parameters()) parameter.mutable_grad().zero_();
    }
    const at::Tensor all = torch::tensor({sums.averaging, sums.waited, sums.last_averaging, sums.step}, at::kDouble);
    world.everyone().all_reduce(all);
    if (world.world_rank().value != 0) return;
    const double* sum = all.const_data_ptr<double>();
    const double count = 4.0 * kSteps;
    std::cout << "{\"averaging\": " << sum[0] / count << ", \"waited\": " << sum[1] / count
              << ", \"last_averaging\": " << sum[2] / count << ", \"step\": " << sum[3] / count << "}" << std::endl;
  });
}
