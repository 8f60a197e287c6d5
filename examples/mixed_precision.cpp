// bfloat16 and float16: modules compute in 16 bits, the optimizer updates float32 parameters, and gradients are added
// up in float32. With float16, losses are scaled, and an overflow on any rank skips the update on all.
//
//   threads: 2 ranks; mpirun -n 4: the same on 4 processes

#include <torch/torch.h>

#include <iostream>
#include <vector>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

std::vector<double> train(sc::World& world, const sc::Precision& precision) {
  torch::manual_seed(0);
  torch::nn::Sequential model;
  for (int block = 0; block < 4; ++block) {
    model->push_back(torch::nn::Linear(32, 32));
    model->push_back(torch::nn::Tanh());
  }
  sc::Pipeline pipeline(
      world, model,
      {.microbatches = 4,
       .loss = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); },
       .broadcast_loss = true,
       .precision = precision});
  // These are float32, whatever the modules compute in.
  torch::optim::AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(1e-2));
  pipeline.attach(optimizer);
  const auto x = torch::linspace(-1, 1, 64 * 32).view({64, 32});
  std::vector<double> losses;
  for (int step = 0; step < 40; ++step) {
    losses.push_back(pipeline.step({x}, {.target = x.sin()}).loss());
    if (pipeline.unscale_gradients()) {  // always, except after an overflow in float16
      pipeline.clip_gradient_norm(1.0);
      optimizer.step();
    }
    optimizer.zero_grad();
  }
  return losses;
}

}  // namespace

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.ranks = 2}, [](sc::World& world) {
    const double exact = train(world, {}).back();
    for (const auto& [name, precision] : {std::pair("bfloat16", sc::Precision{.compute = at::kBFloat16}),
                                          {"float16", sc::Precision{.compute = at::kHalf}},
                                          {"autocast to bfloat16", sc::Precision{.autocast = at::kBFloat16}}}) {
      const std::vector<double> losses = train(world, precision);
      if (losses.back() > 0.5 * losses.front()) throw std::runtime_error(std::string(name) + " does not learn");
      if (world.world_rank().value == 0) {
        std::cout << name << ": loss " << losses.front() << " -> " << losses.back() << " (float32: " << exact << ")\n";
      }
    }
  });
}
