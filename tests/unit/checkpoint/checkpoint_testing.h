#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <mutex>
#include <string>

#include "stagecraft/core/error.h"
#include "stagecraft/stagecraft.h"
#include "support/message_of.h"
#include "support/processes.h"
#include "support/scratch_folder.h"

/// What the tests of checkpoints share. They run with ranks as threads and, under mpirun, as processes.
namespace stagecraft::checkpoint_testing {

struct Layout {
  std::string schedule = "1F1B";
  int ranks = 2;  // as many as there are processes, under mpirun
  int stages_per_rank = 1;
  int replicas = 1;
};

inline void run_on(const Layout& layout, const std::function<void(World&)>& program) {
  if (processes() > 0) {
    World world(ProcessEnvironment::transport(), at::kCPU, kPatience, layout.replicas);
    return program(world);
  }
  run_ranks({.ranks = layout.ranks,
             .replicas = layout.replicas,
             .threads_per_rank = 1,
             .timeout = kPatience},  // a rank may wait for another that starts Python
            program);
}

/// A path that all ranks know: that of rank 0.
inline std::string shared(World& world, const std::string& path) {
  return world.everyone().broadcast({{}, path}, 0).header;
}

inline at::Tensor numbers(at::IntArrayRef sizes, double seed) {
  return (at::arange(c10::multiply_integers(sizes), at::kDouble) * 0.7 + seed).sin().view(sizes).to(at::kFloat);
}

inline void fill(torch::nn::Module& module, double seed) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    seed += 1;
    item.value().copy_(numbers(item.value().sizes(), seed) * 0.5);
  }
}

/// Eight layers, filled with numbers that the seed gives.
inline torch::nn::Sequential model(double seed, double dropout = 0) {
  namespace nn = torch::nn;
  nn::Sequential all(nn::Linear(6, 8), nn::BatchNorm1d(8), nn::Dropout(dropout), nn::Linear(8, 8), nn::Tanh(),
                     nn::Linear(8, 8), nn::Dropout(dropout), nn::Linear(8, 3));
  fill(*all, seed);
  return all;
}

/// A copy for every replica; the stages of one are shared by its ranks.
class Models {
 public:
  Models(const Layout& layout, double seed, double dropout = 0) : layout_(layout) {
    for (int r = 0; r < layout.replicas; ++r) copies_.push_back(model(seed + r, dropout));
  }
  Pipeline pipeline(World& world) {
    return {world,
            split(copies_[static_cast<std::size_t>(world.replica())], world,
                  {.schedule = layout_.schedule, .stages_per_rank = layout_.stages_per_rank}),
            {.schedule = layout_.schedule,
             .microbatches = 4,
             .loss = [](const Value& output, const Value& target,
                        const ValueDict&) { return torch::mse_loss(output.tensor(), target.tensor()); },
             .broadcast_loss = true,
             .seed = 3}};
  }

 private:
  Layout layout_;
  std::vector<torch::nn::Sequential> copies_;
};

/// The losses of steps `from` to `to`, each with a batch of its own.
inline std::vector<double> train(World& world, Pipeline& pipeline, torch::optim::Optimizer& optimizer, int from,
                                 int to) {
  std::vector<double> losses;
  for (int step = from; step < to; ++step) {
    const at::Tensor x = numbers({16, 6}, step), y = numbers({16, 3}, step + 0.5);
    losses.push_back(pipeline.step({world.share_of(x)}, {.target = world.share_of(y)}).loss());
    optimizer.step();
    optimizer.zero_grad();
  }
  return losses;
}

/// What the ranks of this process threw, by world rank.
class Thrown {
 public:
  template <typename Call>
  void expect(World& world, const Call& call) {
    const std::string message = message_of(call);
    const std::lock_guard lock(mutex_);
    messages_.push_back(message);
    EXPECT_NE(message, "nothing was thrown") << world.name();
  }
  [[nodiscard]] const std::vector<std::string>& messages() const { return messages_; }

 private:
  std::mutex mutex_;
  std::vector<std::string> messages_;
};

}  // namespace stagecraft::checkpoint_testing
