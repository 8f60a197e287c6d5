// Two replicas that share what they would otherwise both hold: the state of the optimizer, gradients and parameters. An
// optimizer of LibTorch works on this replica's part as it does on whole parameters. The losses do not change.
//
//   threads: 2 ranks x 2 replicas; mpirun -n 4: the same as processes

#include <torch/torch.h>

#include <iostream>
#include <vector>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

struct Run {
  std::vector<double> losses;
  std::int64_t numbers = 0;  // that this rank's optimizer updates
};

Run train(sc::World& world, sc::Shard shard) {
  sc::LazyLayers model;
  for (int block = 0; block < 4; ++block) {
    model.add([] { return torch::nn::Linear(32, 32); });
    model.add([] { return torch::nn::Tanh(); });
  }
  sc::Pipeline pipeline(
      world, model,
      {.microbatches = 4,
       .loss = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); },
       .broadcast_loss = true,
       .shard = shard});
  // Made from pipeline.parameters(), not from the module's: those are only computed with.
  torch::optim::AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(1e-2));
  pipeline.attach(optimizer);
  const auto x = torch::linspace(-1, 1, 64 * 32).view({64, 32});
  Run run;
  for (int step = 0; step < 20; ++step) {
    run.losses.push_back(pipeline.step({world.share_of(x)}, {.target = world.share_of(x.sin())}).loss());
    pipeline.clip_gradient_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const at::Tensor& parameter : pipeline.parameters()) run.numbers += parameter.numel();
  return run;
}

}  // namespace

int main(int argc, char** argv) {
  return sc::launch(argc, argv, {.ranks = 2, .replicas = 2}, [](sc::World& world) {
    const Run whole = train(world, sc::Shard::kNone);
    for (const sc::Shard shard : {sc::Shard::kOptimizer, sc::Shard::kGradients, sc::Shard::kParameters}) {
      const Run shared = train(world, shard);
      double difference = 0;
      for (std::size_t step = 0; step < whole.losses.size(); ++step) {
        difference = std::max(difference, std::abs(shared.losses[step] - whole.losses[step]));
      }
      if (difference > 1e-5) throw std::runtime_error("losses differ by " + std::to_string(difference));
      if (world.world_rank().value == 0 && shard == sc::Shard::kParameters) {
        std::cout << "loss " << whole.losses.front() << " -> " << whole.losses.back()
                  << ", sharded or not; rank 0 updates " << shared.numbers << " numbers instead of " << whole.numbers
                  << "\n";
      }
    }
  });
}
