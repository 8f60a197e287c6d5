// A schedule of your own, as data: a row per rank, checked before anything runs. The same text can come from a file
// (.schedule = "mine.csv"), from `stagecraft schedule`, or from PyTorch.

#include <torch/torch.h>

#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

/// A schedule for two microbatches, with all weight parts at the end.
std::string make_plan(int ranks) {
  std::string csv;
  for (int r = 0; r < ranks; ++r) {
    const std::string s = std::to_string(r);
    csv += s + "F0," + s + "F1," + s + "I0," + s + "I1," + s + "W0," + s + "W1\n";
  }
  return csv;
}

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.ranks = 2}, [](sc::World& world) {
    const auto plan = sc::Schedule::from_rows(sc::parse_csv(make_plan(world.size())));
    sc::Pipeline pipeline(world, {sc::make_stage(world.rank().value, torch::nn::Linear(4, 4))},
                          {.schedule = plan, .loss = [](const at::Tensor& output, const at::Tensor& target) {
                             return torch::mse_loss(output, target);
                           }});
    const auto x = torch::randn({4, 4});
    pipeline.step({x}, {.target = x});
    if (world.is_first()) sc::write_table(std::cout, pipeline.schedule().rows);  // as executed, messages included
  });
}
