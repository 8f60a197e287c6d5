// 500 steps as processes: resident memory stays flat on every rank, and the losses are those of ranks as threads, bit
// for bit.
//
//   mpirun -n N long_run

#include <torch/torch.h>

#include <fstream>
#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

constexpr int kSteps = 500;
constexpr int kSettled = 100;  // by then every buffer has been made once
constexpr std::int64_t kAllowed = 8 << 20;

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

std::vector<torch::nn::Linear> make_model(int stages) {
  torch::manual_seed(3);
  std::vector<torch::nn::Linear> model;
  for (int s = 0; s < stages; ++s) model.emplace_back(128, 128);
  return model;
}

std::vector<double> train(sc::World& world, const std::vector<torch::nn::Linear>& model, std::int64_t* growth) {
  const std::string schedule = "InterleavedZeroBubble";
  std::vector<sc::Stage> stages;
  for (const sc::StageId stage : sc::stages_here(world, schedule, 2)) {
    stages.push_back(sc::make_stage(stage.value, model[stage.index()]));
  }
  sc::Pipeline pipeline(world, std::move(stages),
                        {.schedule = schedule,
                         .microbatches = 8,
                         .loss = [](const sc::Value& output, const sc::Value& target,
                                    const sc::ValueDict&) { return torch::mse_loss(output.tensor(), target.tensor()); },
                         .broadcast_loss = true});
  torch::optim::SGD optimizer(pipeline.parameters(), 0.05);
  const auto x = torch::linspace(-1, 1, 64 * 128).view({64, 128});
  const auto y = x.sin();
  std::vector<double> losses;
  std::int64_t settled = 0;
  for (int step = 0; step < kSteps; ++step) {
    losses.push_back(pipeline.step({x}, {.target = y}).loss());
    optimizer.step();
    optimizer.zero_grad();
    if (step == kSettled) settled = resident_bytes();
  }
  if (growth != nullptr) *growth = resident_bytes() - settled;
  return losses;
}

}  // namespace

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.world = "mpi", .threads_per_rank = 1}, [](sc::World& world) {
    std::int64_t growth = 0;
    const std::vector<double> losses = train(world, make_model(2 * world.size()), &growth);
    const auto all = world.pipeline().all_gather(std::to_string(growth));
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (world.is_first()) std::cout << "rank " << r << " grew by " << all[r] << " bytes\n";
      if (std::stoll(all[r]) > kAllowed) throw std::runtime_error("rank " + std::to_string(r) + " keeps memory");
    }
    if (!world.is_first()) return;
    const auto model = make_model(2 * world.size());
    std::vector<double> of_threads;
    sc::run_ranks({.ranks = world.size(), .threads_per_rank = 1}, [&](sc::World& threads) {
      const std::vector<double> own = train(threads, model, nullptr);
      if (threads.is_first()) of_threads = own;
    });
    std::cout << "loss " << losses.front() << " -> " << losses.back() << "\n";
    if (losses.back() > losses.front() / 2) throw std::runtime_error("the loss did not fall");
    if (losses != of_threads) throw std::runtime_error("threads give other losses");
  });
}
