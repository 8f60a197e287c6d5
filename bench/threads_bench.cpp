// How close ranks as threads come to the ideal time of a schedule. Compares a measured step with the time that the same
// actions, each with its measured duration, would take if ranks waited for nothing but their inputs. Prints one line of
// JSON.
//
//   threads_bench SCHEDULE RANKS STAGES_PER_RANK MICROBATCHES WIDTH ROWS_PER_MICROBATCH

#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

constexpr int kSteps = 30;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

using Durations = std::map<std::pair<std::size_t, std::size_t>, std::vector<double>>;  // by (rank, action), per step

/// The step's time if every action took its median time and started as soon as its rank and its inputs were ready.
double ideal_time(const sc::Schedule& schedule, const Durations& durations) {
  std::map<std::tuple<bool, int, int>, double> given;  // end time by (is forward, stage, microbatch)
  std::vector<double> clock(schedule.rows.size(), 0);
  std::vector<std::size_t> next(schedule.rows.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
      while (next[r] < schedule.rows[r].size()) {
        const sc::Action action = schedule.rows[r][next[r]];
        const bool forward = action.kind() == sc::ActionKind::kForward;
        const int stage = action.stage().value, microbatch = action.microbatch().value;
        double start = clock[r];
        const int giver = forward ? stage - 1 : stage + 1;
        const bool takes = forward || sc::gives_input_gradient(action.kind());
        if (takes && giver >= 0 && giver < schedule.stages()) {
          const auto found = given.find({forward, giver, microbatch});
          if (found == given.end()) break;
          start = std::max(start, found->second);
        }
        clock[r] = start + median(durations.at({r, next[r]}));
        if (takes) given[{forward, stage, microbatch}] = clock[r];
        ++next[r];
        moved = true;
      }
    }
  }
  return *std::max_element(clock.begin(), clock.end());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::cerr << "usage: threads_bench SCHEDULE RANKS STAGES_PER_RANK MICROBATCHES WIDTH ROWS_PER_MICROBATCH\n";
    return 2;
  }
  const std::string name = argv[1];
  const int ranks = std::atoi(argv[2]), per_rank = std::atoi(argv[3]), microbatches = std::atoi(argv[4]);
  const std::int64_t width = std::atoll(argv[5]), rows = std::atoll(argv[6]);
  std::vector<std::vector<sc::Timeline>> steps(kSteps, std::vector<sc::Timeline>(static_cast<std::size_t>(ranks)));
  sc::Schedule schedule;
  const int code = sc::launch(argc, argv, {.ranks = ranks, .threads_per_rank = 1}, [&](sc::World& world) {
    std::vector<sc::Stage> stages;
    for (const sc::StageId stage : sc::stages_here(world, name, per_rank)) {
      stages.push_back(sc::make_stage(
          stage.value,
          torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::ReLU(), torch::nn::Linear(width, width))));
    }
    sc::Pipeline pipeline(world, std::move(stages),
                          {.schedule = name,
                           .microbatches = microbatches,
                           .loss = [](const sc::Value& output, const sc::Value& target, const sc::ValueDict&) {
                             return torch::mse_loss(output.tensor(), target.tensor());
                           }});
    const auto x = torch::randn({rows * microbatches, width});
    for (int warm_up = 0; warm_up < 5; ++warm_up) pipeline.step({x}, {.target = x});
    pipeline.record_timeline(true);
    for (int step = 0; step < kSteps; ++step) {
      pipeline.step({x}, {.target = x});
      steps[static_cast<std::size_t>(step)][world.rank().index()] = pipeline.timeline();
      world.everyone().barrier();
    }
    if (world.is_first()) schedule = pipeline.schedule();
  });
  if (code != 0) return code;
  Durations durations;
  std::vector<double> times;
  for (const auto& step : steps) {
    times.push_back(sc::summarize(step).seconds);
    for (std::size_t r = 0; r < step.size(); ++r) {
      for (std::size_t i = 0; i < step[r].size(); ++i) {
        const sc::Span& span = step[r][i];
        durations[{r, i}].push_back(span.end - span.start - span.waited);
      }
    }
  }
  const double measured = median(times), ideal = ideal_time(schedule, durations);
  std::cout << "{\"step\": " << measured << ", \"ideal\": " << ideal << ", \"over_ideal\": " << measured / ideal
            << "}\n";
}
