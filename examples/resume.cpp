// A run that may be killed at any time: it saves while it trains, and each start goes on from the last complete
// checkpoint.
//
//   step         0 ... 9 | 10 ... 19 | killed at 24
//   file                 └─ step-10  └─ step-20         the next start begins at 20
//
// Weights decay, biases do not, and the learning rate follows a cosine that the checkpoint knows.

#include <torch/torch.h>
#include <unistd.h>

#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

/// What the program's main would do. Returns the last loss, and the update it began at.
std::pair<double, std::int64_t> start(sc::World& world, const std::string& folder, std::int64_t killed_at) {
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Dropout(0.1),
                              torch::nn::Linear(32, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  for (const auto& item : model->named_parameters()) torch::nn::init::constant_(item.value(), 0.1);
  sc::Pipeline pipeline(
      world, model,
      {.microbatches = 4,
       .loss = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); },
       .broadcast_loss = true,
       .seed = 1});
  using torch::optim::AdamWOptions;
  torch::optim::AdamW optimizer(sc::parameter_groups(world, pipeline.named_parameters(),
                                                     {{"*.bias", AdamWOptions(1e-2).weight_decay(0)},
                                                      {"*", AdamWOptions(1e-2).weight_decay(0.1)}}),
                                AdamWOptions(1e-2));
  sc::LearningRate rate = sc::LearningRate::cosine({.base = 1e-2, .warm_up = 4, .updates = 40, .last = 1e-3});

  sc::Checkpoints checkpoints(world, {.folder = folder, .keep = 2});
  const std::int64_t begin =
      checkpoints.load_latest(pipeline, {.optimizer = &optimizer, .learning_rate = &rate}).value_or(0);
  const auto x = torch::linspace(-1, 1, 64 * 8).view({64, 8});
  const auto y = x.sin().sum(1, /*keepdim=*/true);
  double loss = 0;
  for (std::int64_t update = begin; update < 40; ++update) {
    if (update == killed_at) return {loss, begin};
    rate.apply(optimizer, update);
    loss = pipeline.step({x}, {.target = y}).loss();
    optimizer.step();
    optimizer.zero_grad();
    if ((update + 1) % 10 == 0) {
      checkpoints.save(pipeline, {.optimizer = &optimizer, .step = update + 1, .learning_rate = &rate});
    }
  }
  checkpoints.wait();
  return {loss, begin};
}

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.ranks = 3}, [](sc::World& world) {
    const std::string folder = "checkpoints_of_" + std::to_string(world.size()) + "_ranks";
    const auto remove = [&](const std::string& path, std::initializer_list<int> steps) {
      world.everyone().barrier();
      if (world.world_rank().value != 0) return;
      for (const int step : steps) ::unlink((path + "/step-" + std::to_string(step) + ".safetensors").c_str());
      ::rmdir(path.c_str());
    };
    const double expected = start(world, folder + "_never_stopped", -1).first;
    start(world, folder, 24);
    const auto [loss, begin] = start(world, folder, -1);
    remove(folder + "_never_stopped", {30, 40});
    remove(folder, {30, 40});
    if (!world.is_first()) return;
    std::cout << "loss " << loss << ", resumed at update " << begin << "; never stopped: " << expected << "\n";
    if (loss != expected || begin != 20) throw std::runtime_error("the losses differ");
  });
}
