// A schedule of your own, as data: a row per rank, checked before anything runs. The same text can come from a file
// (.schedule = "mine.csv"), from `stagecraft schedule`, or from PyTorch.

#include <torch/torch.h>

#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

int main(int argc, char** argv) {
  // Two ranks, two microbatches; rank 1 leaves its weight parts to the end.
  const auto plan =
      sc::Schedule::from_rows(sc::parse_csv("0F0,0F1,,0I0,0W0,0I1,0W1\n"
                                            ",1F0,1I0,1F1,1I1,1W0,1W1\n"));
  return sc::launch(argc, argv, {.ranks = 2}, [&](sc::World& world) {
    sc::Pipeline pipeline(
        world, {sc::make_stage(world.rank().value, torch::nn::Linear(4, 4))},
        {.plan = plan, .loss = [](const sc::Value& output, const sc::Value& target, const sc::ValueDict&) {
           return torch::mse_loss(output.tensor(), target.tensor());
         }});
    const auto x = torch::randn({4, 4});
    pipeline.step({x}, {.target = x});
    if (world.is_first()) sc::write_table(std::cout, pipeline.schedule().rows);  // as executed, messages included
  });
}
