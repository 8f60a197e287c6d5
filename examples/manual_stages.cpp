// Stages written by hand: any callable with parameters, any number of values in and out.
//
//   rank 0 (a lambda)  --(hidden, mask)-->  ranks in between (modules)  --(hidden, mask)-->  last rank (a module)

#include <torch/torch.h>

#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

/// Takes what the stage before returns: two tensors.
struct HeadImpl : torch::nn::Module {
  HeadImpl() : linear(register_module("linear", torch::nn::Linear(16, 3))) {}
  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& mask) { return linear(hidden * mask); }
  torch::nn::Linear linear;
};
TORCH_MODULE(Head);

/// Also returns several values, as a list.
struct MiddleImpl : torch::nn::Module {
  MiddleImpl() : linear(register_module("linear", torch::nn::Linear(16, 16))) {}
  sc::Value forward(const torch::Tensor& hidden, const torch::Tensor& mask) {
    return sc::ValueList{torch::tanh(linear(hidden)), mask};
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Middle);

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.ranks = 2}, [](sc::World& world) {
    std::vector<sc::Stage> stages;
    if (world.is_first()) {
      const auto weight = torch::randn({16, 4}).mul(0.1).requires_grad_(true);
      stages.emplace_back(
          0,
          [weight](const sc::StageCall& call) -> sc::Value {
            const auto hidden = torch::tanh(torch::linear(call.tensor(0), weight));
            return sc::ValueList{hidden, (call.tensor(0).sum(1, true) > 0).to(torch::kFloat)};
          },
          sc::NamedTensors{{"embed.weight", weight}});
    } else if (world.is_last()) {
      stages.push_back(sc::make_stage(world.rank().value, Head(), {}, "head"));  // head.linear.weight, ...
    } else {
      stages.push_back(sc::make_stage(world.rank().value, Middle(), {}, "middle" + std::to_string(world.rank().value)));
    }
    sc::Pipeline pipeline(world, std::move(stages),
                          {.schedule = "ZB-H1",
                           .microbatches = 4,
                           .loss = [](const sc::Value& logits, const sc::Value& label, const sc::ValueDict&) {
                             return torch::nn::functional::cross_entropy(logits.tensor(), label.tensor());
                           }});
    std::string names;
    for (const auto& [name, parameter] : pipeline.named_parameters()) names += " " + name;
    for (const std::string& of_rank : world.pipeline().all_gather(names)) {
      if (world.is_first()) std::cout << "a rank has" << of_rank << "\n";
    }
    const auto x = torch::randn({12, 4});
    const auto label = torch::arange(12).remainder(3);
    pipeline.step({x}, {.target = label});
    for (const auto& parameter : pipeline.parameters()) {
      if (!parameter.grad().defined()) throw std::runtime_error("a parameter has no gradient");
    }
  });
}
