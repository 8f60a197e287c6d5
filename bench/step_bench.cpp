// Compares a training step of a pipeline with the plain loop a user would write (forward, loss, backward, one
// microbatch after the other), on the same modules with one thread per rank: the difference is the cost of staging. For
// schedules of full backwards also runs a loop that is staged by hand and takes the actions in the schedule's order:
// its difference to the plain loop is the cost of that order. All run in one process, in turns; the best turn counts.
// Prints one line of JSON.
//
//   step_bench SCHEDULE WIDTH ROWS_PER_MICROBATCH MICROBATCHES STAGES [RANKS] [DEVICE]

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

struct Setting {
  std::string schedule;
  std::int64_t width;
  std::int64_t rows;
  int microbatches;
  int stages;
  int ranks;
  torch::Device device;
};

torch::nn::Sequential make_module(const Setting& setting) {
  torch::nn::Sequential module(torch::nn::Linear(setting.width, setting.width), torch::nn::ReLU(),
                               torch::nn::Linear(setting.width, setting.width));
  module->to(setting.device);
  return module;
}

torch::Tensor loss_of(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::mse_loss(output, target);
}

void synchronise(const torch::Device& device) {
  if (device.is_cuda()) torch::cuda::synchronize();
}

/// The schedule by name or from a CSV file.
sc::Schedule plan_of(const Setting& setting) {
  if (setting.schedule.ends_with(".csv")) {
    std::ifstream file(setting.schedule);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return sc::Schedule::from_rows(sc::parse_csv(text), setting.schedule);
  }
  return sc::make_schedule(setting.schedule, {.ranks = setting.ranks,
                                              .stages_per_rank = setting.stages / setting.ranks,
                                              .microbatches = setting.microbatches});
}

template <typename Step>
double seconds_per_step(const Setting& setting, int steps, const Step& step) {
  synchronise(setting.device);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) step();
  synchronise(setting.device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / steps;
}

void run(const Setting& setting, sc::World& world) {
  torch::manual_seed(1);
  std::vector<torch::nn::Sequential> modules;
  for (int s = 0; s < setting.stages; ++s) modules.push_back(make_module(setting));
  const auto options = torch::TensorOptions().device(setting.device);
  const auto input = torch::randn({setting.rows * setting.microbatches, setting.width}, options);
  const auto target = torch::randn_like(input);

  const auto bare_step = [&] {
    for (auto& module : modules) module->zero_grad();
    const auto inputs = input.chunk(setting.microbatches);
    const auto targets = target.chunk(setting.microbatches);
    for (std::size_t m = 0; m < inputs.size(); ++m) {
      torch::Tensor x = inputs[m];
      for (auto& module : modules) x = module->forward(x);
      (loss_of(x, targets[m]) / setting.microbatches).backward();
    }
  };

  const auto plan = plan_of(setting);
  const auto step_by_hand = [&] {
    for (auto& module : modules) module->zero_grad();
    const auto inputs = input.chunk(setting.microbatches);
    const auto targets = target.chunk(setting.microbatches);
    const auto count = static_cast<std::size_t>(setting.microbatches);
    std::vector<std::vector<torch::Tensor>> in(modules.size(), std::vector<torch::Tensor>(count)), out = in;
    for (const sc::Action& action : plan.rows[0]) {
      if (action.kind() == sc::ActionKind::kIdle) continue;
      const std::size_t s = action.stage().index();
      const std::size_t m = action.microbatch().index();
      if (action.kind() == sc::ActionKind::kForward) {
        in[s][m] = s == 0 ? inputs[m] : out[s - 1][m].detach().requires_grad_(true);
        out[s][m] = modules[s]->forward(in[s][m]);
        if (s + 1 == modules.size()) out[s][m] = loss_of(out[s][m], targets[m]) / setting.microbatches;
      } else {
        const bool is_last = s + 1 == modules.size();
        torch::autograd::backward({out[s][m]}, {is_last ? torch::Tensor() : in[s + 1][m].grad()});
        out[s][m].reset();
        if (!is_last) in[s + 1][m].reset();
      }
    }
  };
  const bool has_full_backwards =
      setting.ranks == 1 && std::none_of(plan.rows[0].begin(), plan.rows[0].end(), [](const sc::Action& a) {
        return a.kind() == sc::ActionKind::kBackwardInput;
      });

  std::vector<sc::Stage> stages;
  for (const auto stage : plan.placement.stages_of(world.rank())) {
    stages.push_back(sc::make_stage(stage.value, modules[stage.index()]));
  }
  sc::Pipeline pipeline(world, std::move(stages),
                        {.schedule = plan,
                         .microbatches = setting.microbatches,
                         .loss = [](const sc::Value& output, const sc::Value& expected, const sc::ValueDict&) {
                           return loss_of(output.tensor(), expected.tensor());
                         }});
  const auto our_step = [&] {
    for (auto& module : modules) module->zero_grad();
    pipeline.step({input}, {.target = target});
  };

  double bare = 1e9;
  double by_hand = 1e9;
  double ours = 1e9;
  const at::Tensor guess = torch::tensor(seconds_per_step(setting, 3, our_step), at::kDouble);
  world.everyone().all_reduce(guess, sc::Reduction::kMax);  // all ranks run the same number of steps
  const int steps = std::clamp(static_cast<int>(0.05 / guess.item<double>()), 1, 50);
  for (int turn = 0; turn < 15; ++turn) {
    if (setting.ranks == 1) bare = std::min(bare, seconds_per_step(setting, steps, bare_step));
    if (has_full_backwards) by_hand = std::min(by_hand, seconds_per_step(setting, steps, step_by_hand));
    ours = std::min(ours, seconds_per_step(setting, steps, our_step));
  }
  if (!world.is_last()) return;
  std::cout << "{\"ours\": " << ours;
  if (setting.ranks == 1) std::cout << ", \"bare\": " << bare;
  if (has_full_backwards) std::cout << ", \"by_hand\": " << by_hand;
  std::cout << "}\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::cerr << "usage: step_bench SCHEDULE WIDTH ROWS_PER_MICROBATCH MICROBATCHES STAGES [RANKS] [DEVICE]\n";
    return 2;
  }
  const Setting setting{.schedule = argv[1],
                        .width = std::atoll(argv[2]),
                        .rows = std::atoll(argv[3]),
                        .microbatches = std::atoi(argv[4]),
                        .stages = std::atoi(argv[5]),
                        .ranks = argc > 6 ? std::atoi(argv[6]) : 1,
                        .device = torch::Device(argc > 7 ? argv[7] : "cpu")};
  return sc::launch(
      argc, argv, {.ranks = setting.ranks, .threads_per_rank = 1, .device = [&](sc::RankId) { return setting.device; }},
      [&](sc::World& world) { run(setting, world); });
}
