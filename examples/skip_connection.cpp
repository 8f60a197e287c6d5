// A U-shaped model: the first stage's output goes to the second stage and, past all others, to the last.
//
//   stage 0 ──▶ stage 1 ──▶ ... ──▶ last stage
//      └───────────────────────────────▲

#include <torch/torch.h>

#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.ranks = 3}, [](sc::World& world) {
    torch::nn::Linear linear(8, 8);
    auto stage =
        sc::make_stage(world.rank().value, linear.ptr(), [linear](const sc::StageCall& call) mutable -> sc::Value {
          const auto y = torch::relu(linear(call.tensor(0)));
          return call.arguments.size() > 1 ? y + call.tensor(1) : y;  // the last stage has a second argument
        });
    const int last = world.size() - 1;
    std::vector<sc::Edge> edges;
    for (int s = 0; s < last; ++s)
      edges.push_back({.from = sc::StageId(s), .output = 0, .to = sc::StageId(s + 1), .argument = 0});
    edges.push_back({.from = sc::StageId(0), .output = 0, .to = sc::StageId(last), .argument = 1});
    sc::Pipeline pipeline(
        world, {std::move(stage)},
        {.schedule = "ZB-H1",
         .microbatches = 3,
         .loss = [](const sc::Value& output, const sc::Value& target,
                    const sc::ValueDict&) { return torch::mse_loss(output.tensor(), target.tensor()); },
         .edges = edges});
    const auto x = torch::randn({6, 8});
    const sc::StepResult result = pipeline.step({x}, {.target = x});
    if (result.has_loss()) std::cout << "loss " << result.loss() << "\n";
    if (!linear->weight.grad().defined()) throw std::runtime_error("no gradient came along the skip connection");
  });
}
