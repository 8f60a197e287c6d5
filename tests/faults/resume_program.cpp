// Trains a small pipeline, saves a checkpoint in the background every few updates, and goes on from the last one that
// it finds: killed at any moment and started again, it gives the losses of a run that never stopped.
//
//   [mpirun -n N] resume_program FOLDER LOSSES UPDATES SAVE_EVERY RANKS REPLICAS STAGES_PER_RANK SHARD [MARK]
//
// Appends "update loss" to the file LOSSES for every update. SHARD: none, optimizer, gradients, parameters.

#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>

#include "stagecraft/stagecraft.h"

namespace sc = stagecraft;

namespace {

constexpr std::int64_t kWidth = 96;
constexpr int kMicrobatches = 4;  // of all replicas together, so that all layouts draw the same dropout

at::Tensor batch_of(at::IntArrayRef sizes, double seed) {
  return (at::arange(c10::multiply_integers(sizes), at::kDouble) * 0.7 + seed).sin().view(sizes);
}

torch::nn::Sequential some_layers() {
  namespace nn = torch::nn;
  nn::Sequential all(nn::Linear(8, kWidth), nn::Tanh(), nn::Dropout(0.1), nn::Linear(kWidth, kWidth), nn::Tanh(),
                     nn::Linear(kWidth, kWidth), nn::Dropout(0.1), nn::Linear(kWidth, 1));
  all->to(at::kDouble);  // layouts add up in different orders: too little to be seen in the losses
  const torch::NoGradGuard no_grad;
  double seed = 0;
  for (const auto& item : all->named_parameters()) item.value().copy_(batch_of(item.value().sizes(), ++seed) * 0.15);
  return all;
}

/// One call, so that a kill leaves whole lines but for the last.
void append_line(const char* path, std::int64_t update, double loss) {
  char line[64];
  const int length = std::snprintf(line, sizeof line, "%lld %.17g\n", static_cast<long long>(update), loss);
  const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
  if (file < 0 || ::write(file, line, static_cast<std::size_t>(length)) != length) throw std::runtime_error(path);
  ::close(file);
}

void train_to_the_end(sc::World& world, char** argv) {
  const std::int64_t updates = std::atoll(argv[3]);
  const std::int64_t save_every = std::atoll(argv[4]);
  const int per_rank = std::atoi(argv[7]);
  const std::map<std::string, sc::Shard> shards = {{"none", sc::Shard::kNone},
                                                   {"optimizer", sc::Shard::kOptimizer},
                                                   {"gradients", sc::Shard::kGradients},
                                                   {"parameters", sc::Shard::kParameters}};
  sc::Pipeline pipeline(
      world, some_layers(),
      {.schedule = per_rank == 1 ? "1F1B" : "Interleaved1F1B",
       .stages_per_rank = per_rank,
       .microbatches = kMicrobatches / world.replicas(),
       .loss = [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); },
       .broadcast_loss = true,
       .seed = 11,
       .shard = shards.at(argv[8])});
  using torch::optim::AdamWOptions;
  torch::optim::AdamW optimizer(sc::parameter_groups(world, pipeline.named_parameters(),
                                                     {{"*.bias", AdamWOptions(2e-3).weight_decay(0)},
                                                      {"*", AdamWOptions(5e-3).weight_decay(0.1)}}),
                                AdamWOptions(5e-3));
  pipeline.attach(optimizer);
  sc::LearningRate rate = sc::LearningRate::cosine({.base = 5e-3, .warm_up = 5, .updates = updates, .last = 5e-4});
  sc::Checkpoints checkpoints(world, {.folder = argv[1], .keep = 2});
  const std::int64_t begin =
      checkpoints.load_latest(pipeline, {.optimizer = &optimizer, .learning_rate = &rate}).value_or(0);
  if (world.world_rank().value == 0) std::cerr << "it trains from " << begin << std::endl;
  for (std::int64_t update = begin; update < updates; ++update) {
    const at::Tensor x = batch_of({64, 8}, 0.1 * static_cast<double>(update));
    const at::Tensor y = x.sum(1, /*keepdim=*/true).cos();
    rate.apply(optimizer, update);
    const double loss = pipeline.step({world.share_of(x)}, {.target = world.share_of(y)}).loss();
    optimizer.step();
    optimizer.zero_grad();
    if (world.world_rank().value == 0) append_line(argv[2], update, loss);
    if ((update + 1) % save_every == 0 || update + 1 == updates) {
      checkpoints.save(pipeline, {.optimizer = &optimizer, .step = update + 1, .learning_rate = &rate});
    }
  }
  checkpoints.wait();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 9) {
    std::cerr << "usage: resume_program FOLDER LOSSES UPDATES SAVE_EVERY RANKS REPLICAS STAGES_PER_RANK SHARD [MARK]\n";
    return 2;
  }
  return sc::launch(argc, argv,
                    {.ranks = std::max(1, std::atoi(argv[5])),
                     .replicas = std::max(1, std::atoi(argv[6])),
                     .threads_per_rank = 1,
                     .timeout = std::chrono::minutes(1)},
                    [&](sc::World& world) { train_to_the_end(world, argv); });
}
