// What a user writes after `cmake --install`, to train: one include, one target.
#include <stagecraft/stagecraft.h>
#include <torch/torch.h>

#include <iostream>

namespace sc = stagecraft;

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.ranks = 2}, [](sc::World& world) {
    sc::Pipeline pipeline(world, {sc::make_stage(world.rank().value, torch::nn::Linear(4, 4))},
                          {.schedule = "ZB-H1",
                           .microbatches = 4,
                           .loss = [](const sc::Value& output, const sc::Value& target, const sc::ValueDict&) {
                             return torch::mse_loss(output.tensor(), target.tensor());
                           }});
    const auto x = torch::ones({4, 4});
    const sc::StepResult result = pipeline.step({x}, {.target = x});
    if (result.has_loss()) std::cout << "trained: " << (result.loss() >= 0) << "\n";
  });
}
