// After warm-up, a step makes no more heap allocations than a hand-written staged loop in plain LibTorch.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "stagecraft/stagecraft.h"
#include "support/patience.h"

namespace {

std::atomic<std::int64_t> allocations = 0;

void* counted(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// These operators replace those of the whole process, LibTorch included.
void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace stagecraft {
namespace {

using torch::Tensor;

constexpr std::int64_t kWidth = 8;
constexpr int kStages = 4;
constexpr int kMicrobatches = 8;
constexpr int kWarmUp = 5;
constexpr int kSteps = 10;

std::vector<torch::nn::Sequential> make_modules() {
  std::vector<torch::nn::Sequential> modules;
  for (int s = 0; s < kStages; ++s) {
    modules.emplace_back(torch::nn::Linear(kWidth, kWidth), torch::nn::ReLU(), torch::nn::Linear(kWidth, kWidth));
  }
  return modules;
}

/// In one step, after warming up.
template <typename Step>
std::int64_t allocations_of(const Step& step) {
  for (int i = 0; i < kWarmUp; ++i) step();
  const std::int64_t before = allocations;
  for (int i = 0; i < kSteps; ++i) step();
  return (allocations - before) / kSteps;
}

/// The actions of one rank in their order, as bench/step_bench.cpp has it.
std::int64_t by_hand(const Schedule& schedule) {
  auto modules = make_modules();
  const Tensor input = torch::randn({2 * kMicrobatches, kWidth});
  const Tensor target = torch::randn_like(input);
  return allocations_of([&] {
    const auto inputs = input.chunk(kMicrobatches);
    const auto targets = target.chunk(kMicrobatches);
    std::vector<std::vector<Tensor>> in(modules.size(), std::vector<Tensor>(kMicrobatches)), out = in;
    for (const Action& action : schedule.rows[0]) {
      if (action.kind() == ActionKind::kIdle) continue;
      const std::size_t s = action.stage().index();
      const std::size_t m = action.microbatch().index();
      const bool is_last = s + 1 == modules.size();
      if (action.kind() == ActionKind::kForward) {
        in[s][m] = s == 0 ? inputs[m] : out[s - 1][m].detach().requires_grad_(true);
        out[s][m] = modules[s]->forward(in[s][m]);
        if (is_last) out[s][m] = torch::mse_loss(out[s][m], targets[m]) / kMicrobatches;
      } else {
        torch::autograd::backward({out[s][m]}, {is_last ? Tensor() : in[s + 1][m].grad()});
        out[s][m].reset();
        if (!is_last) in[s + 1][m].reset();
      }
    }
  });
}

/// Sum over all ranks.
std::int64_t by_pipeline(const std::string& schedule, int ranks) {
  std::int64_t counted = 0;
  run_ranks({.ranks = ranks, .threads_per_rank = 1, .timeout = kPatience}, [&](World& world) {
    auto modules = make_modules();
    std::vector<Stage> stages;
    for (const StageId stage : stages_here(world, schedule, kStages / ranks)) {
      stages.push_back(make_stage(stage.value, modules[stage.index()]));
    }
    Pipeline pipeline(
        world, std::move(stages),
        {.schedule = schedule, .microbatches = kMicrobatches, .loss = [](const Tensor& output, const Tensor& expected) {
           return torch::mse_loss(output, expected);
         }});
    const Tensor input = torch::randn({2 * kMicrobatches, kWidth});
    const Tensor target = torch::randn_like(input);
    const std::int64_t own = allocations_of([&] { pipeline.step({input}, {.target = target}); });
    if (world.is_first()) counted = own;
  });
  return counted;
}

TEST(Allocations, AWarmedUpStepMakesNoMoreThanALoopStagedByHand) {
  const Schedule one_rank =
      make_schedule("Interleaved1F1B", {.ranks = 1, .stages_per_rank = kStages, .microbatches = kMicrobatches});
  const std::int64_t hand = by_hand(one_rank);
  for (const int ranks : {1, 2, 4}) {
    const std::int64_t ours = by_pipeline(ranks == kStages ? "1F1B" : "Interleaved1F1B", ranks);
    std::cout << ranks << " ranks: " << ours << " allocations per step, by hand " << hand << '\n';
    EXPECT_LE(ours, hand) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace stagecraft
