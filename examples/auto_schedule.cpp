// A pipeline that finds its schedule while it trains: it records some steps, rank 0 plans, then the old and the new
// schedule are measured in turns, and the faster one stays.
//
//   step  0 ...  7   recorded: backwards whole, split, whole, split, ...
//   step  8 ... 15   measured: planned, old, planned, old, ...
//   step 16 ...      the faster one

#include <torch/torch.h>

#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.ranks = 2, .threads_per_rank = 1}, [](sc::World& world) {
    torch::nn::Sequential model;
    for (int layer = 0; layer < 4 * world.size(); ++layer) {
      model->push_back(torch::nn::Linear(128, 128));
      model->push_back(torch::nn::Tanh());
    }
    // Two stages per rank, in a V.
    sc::Pipeline pipeline(
        world, model,
        {.schedule = "auto",
         .stages_per_rank = 2,
         .microbatches = 8,
         .loss = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); },
         .automatic = {.profile_steps = 3, .time_budget = 2}});
    torch::optim::Adam optimizer(pipeline.parameters(), 1e-3);
    const auto x = torch::linspace(-1, 1, 256 * 128).view({256, 128});
    for (int step = 0; step < 20; ++step) {
      pipeline.step({x}, {.target = x});
      optimizer.step();
      optimizer.zero_grad();
    }
    if (!world.is_first()) return;
    std::cout << sc::auto_report(pipeline).text() << "\n";
    if (sc::auto_report(pipeline).phase != sc::AutoReport::Phase::kDecided)
      throw std::runtime_error("it did not decide");
  });
}
