// A Sequential, cut between its layers over the ranks: threads of this process, or processes under mpirun.
//
//   rank 0: Linear Tanh Linear | rank 1: Tanh Linear Tanh | rank 2: Linear Tanh Linear

#include <torch/torch.h>

#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.ranks = 3}, [](sc::World& world) {
    torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 32),
                                torch::nn::Tanh(), torch::nn::Linear(32, 32), torch::nn::Tanh(),
                                torch::nn::Linear(32, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
    sc::Pipeline pipeline(world, model,
                          {.microbatches = 4, .loss = [](const at::Tensor& output, const at::Tensor& target) {
                             return torch::mse_loss(output, target);
                           }});
    torch::optim::Adam optimizer(pipeline.parameters(), 1e-2);
    const auto x = torch::linspace(-1, 1, 64 * 8).view({64, 8});
    const auto y = x.sin().sum(1, /*keepdim=*/true);
    double first = 0;
    double last = 0;
    for (int step = 0; step < 60; ++step) {
      const sc::StepResult result = pipeline.step({x}, {.target = y});
      optimizer.step();
      optimizer.zero_grad();
      if (!result.has_loss()) continue;
      last = result.loss();
      if (step == 0) first = last;
    }
    if (!world.is_last()) return;
    std::cout << "loss " << first << " -> " << last << "\n";
    if (last > first / 2) throw std::runtime_error("the loss did not fall");
  });
}
