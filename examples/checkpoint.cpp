// Stop and resume: a run that loads the checkpoint of another gives the losses of a run that never stopped.
//
//   steps 0..9                    10..19
//   ────────────▶ checkpoint ──▶ ────────────▶   the same, bit for bit
//
// The file is a safetensors file of the whole model: other ranks, other schedules and Python read it as well.

#include <torch/torch.h>

#include <cstdio>
#include <iostream>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

/// A model, its pipeline and its optimizer.
struct Run {
  explicit Run(sc::World& world)
      : model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Dropout(0.1), torch::nn::Linear(32, 32),
              torch::nn::Tanh(), torch::nn::Linear(32, 1)),
        pipeline(
            world, model,
            {.microbatches = 4,
             .loss = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); },
             .broadcast_loss = true,
             .seed = 1}),
        optimizer(pipeline.parameters(), 1e-2) {}

  double train(std::int64_t from, std::int64_t to) {
    const auto x = torch::linspace(-1, 1, 64 * 8).view({64, 8});
    const auto y = x.sin().sum(1, /*keepdim=*/true);
    double loss = 0;
    for (std::int64_t step = from; step < to; ++step) {
      loss = pipeline.step({x}, {.target = y}).loss();
      optimizer.step();
      optimizer.zero_grad();
    }
    return loss;
  }

  torch::nn::Sequential model;
  sc::Pipeline pipeline;
  torch::optim::Adam optimizer;
};

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.ranks = 3}, [](sc::World& world) {
    const std::string path = "checkpoint_of_" + std::to_string(world.size()) + "_ranks.safetensors";
    Run first(world);
    first.train(0, 10);
    sc::save_checkpoint(world, first.pipeline, path, {.optimizer = &first.optimizer, .step = 10});
    const double expected = first.train(10, 20);

    Run second(world);  // other weights, until it loads
    const std::int64_t step = sc::load_checkpoint(world, second.pipeline, path, {.optimizer = &second.optimizer});
    const double loss = second.train(step, 20);
    if (!world.is_first()) return;
    std::remove(path.c_str());
    std::cout << "loss " << loss << " after 20 steps, stopped at step " << step << "; never stopped: " << expected
              << "\n";
    if (loss != expected) throw std::runtime_error("the losses differ");
  });
}
