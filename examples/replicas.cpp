// Two replicas of a pipeline, each on half of every batch: the gradients are those of the whole batch. Their norm over
// all stages is clipped.
//
//   threads: 2 ranks x 2 replicas; mpirun -n 4: the same as processes; mpirun -n 2: 1 rank x 2 replicas

#include <torch/torch.h>

#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.ranks = 2, .replicas = 2}, [](sc::World& world) {
    torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 32),
                                torch::nn::Tanh(), torch::nn::Linear(32, 1));
    sc::Pipeline pipeline(
        world, model,
        {.microbatches = 4,
         .loss = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); },
         .broadcast_loss = true});
    torch::optim::Adam optimizer(pipeline.parameters(), 1e-2);
    const auto x = torch::linspace(-1, 1, 65 * 8).view({65, 8});  // shares need not be equal
    const auto y = x.sin().sum(1, /*keepdim=*/true);
    double first = 0;
    double last = 0;
    for (int step = 0; step < 60; ++step) {
      const sc::StepResult result = pipeline.step({world.share_of(x)}, {.target = world.share_of(y)});
      pipeline.clip_gradient_norm(1.0);
      optimizer.step();
      optimizer.zero_grad();
      last = result.loss();  // of the whole batch
      if (step == 0) first = last;
    }
    if (world.world_rank().value != 0) return;
    std::cout << world.replicas() << " replicas of " << world.size() << " ranks: loss " << first << " -> " << last
              << "\n";
    if (last > first / 2) throw std::runtime_error("the loss did not fall");
  });
}
