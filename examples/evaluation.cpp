// Training and evaluation in turns. `eval` builds no graphs, switches dropout off, and leaves gradients alone.

#include <torch/torch.h>

#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.ranks = 2}, [](sc::World& world) {
    torch::nn::Sequential model(torch::nn::Linear(4, 16), torch::nn::Dropout(0.2), torch::nn::Tanh(),
                                torch::nn::Linear(16, 16), torch::nn::Tanh(), torch::nn::Linear(16, 16),
                                torch::nn::Tanh(), torch::nn::Linear(16, 1));
    // A V of two stages per rank: rank 0 has the first stage and the last.
    sc::Pipeline pipeline(
        world, model,
        {.schedule = "ZBVZeroBubble",
         .microbatches = 4,
         .loss = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); },
         .broadcast_loss = true});
    torch::optim::SGD optimizer(pipeline.parameters(), 0.1);
    const auto x = torch::linspace(0, 1, 64).view({16, 4});
    const auto y = x.sum(1, true);
    for (int epoch = 0; epoch < 5; ++epoch) {
      for (int step = 0; step < 10; ++step) {
        pipeline.step({x}, {.target = y});
        optimizer.step();
        optimizer.zero_grad();
      }
      const sc::StepResult result = pipeline.eval({x}, {.target = y});  // every rank has the loss: it is broadcast
      if (pipeline.has_last_stage())
        std::cout << "epoch " << epoch << ": loss " << result.loss() << ", " << result.output.tensor().size(0)
                  << " predictions\n";
    }
  });
}
