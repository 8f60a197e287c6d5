// Less memory for more compute: what the layers computed is dropped after the forward, and computed again before the
// backward. The losses do not change, and dropout draws the same numbers the second time.
//
//   threads: 2 ranks; mpirun -n 2: the same as processes

#include <torch/torch.h>

#include <iostream>
#include <vector>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

std::vector<double> losses_of(sc::World& world, const sc::Recompute& recompute) {
  sc::LazyLayers model;  // which starts with the same weights every time
  for (int block = 0; block < 8; ++block) {
    model.add([] { return torch::nn::Linear(16, 16); });
    model.add([] { return torch::nn::Tanh(); });
    model.add([] { return torch::nn::Dropout(0.1); });
  }
  sc::Pipeline pipeline(
      world, model,
      {.schedule = "1F1B",
       .microbatches = 4,
       .loss = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); },
       .broadcast_loss = true,
       .recompute = recompute});
  torch::optim::Adam optimizer(pipeline.parameters(), 1e-2);
  const auto x = torch::linspace(-1, 1, 32 * 16).view({32, 16});
  std::vector<double> losses;
  for (int step = 0; step < 20; ++step) {
    losses.push_back(pipeline.step({x}, {.target = x.sin()}).loss());
    optimizer.step();
    optimizer.zero_grad();
  }
  return losses;
}

}  // namespace

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.ranks = 2}, [](sc::World& world) {
    const std::vector<double> kept = losses_of(world, {});
    const std::vector<double> by_stage = losses_of(world, sc::Recompute::stage());
    const std::vector<double> by_layers = losses_of(world, sc::Recompute::every(3));
    if (world.world_rank().value != 0) return;
    std::cout << "loss " << kept.front() << " -> " << kept.back() << ", the same with recompute: " << std::boolalpha
              << (kept == by_stage && kept == by_layers) << "\n";
    if (kept != by_stage || kept != by_layers) throw std::runtime_error("losses differ");
  });
}
