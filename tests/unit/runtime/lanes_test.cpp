// Which microbatches of a captured step may run side by side, and how tensors that forbid it are found. What runs on a
// GPU is in tests/gpu.

#include "lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "program.h"
#include "stagecraft/stagecraft.h"
#include "tensor_watch.h"

namespace stagecraft {
namespace {

using testing::ElementsAre;

Program program_of(const char* schedule, int microbatches) {
  const Schedule made = make_schedule(schedule, {.ranks = 1, .stages_per_rank = 4, .microbatches = microbatches});
  return compile(lower(made, "", CommModel::kTagged), RankId(0), {RankId(0)});
}

TEST(Lanes, AreTakenByMicrobatchesInFlight) {
  // Two are in flight, so they take turns.
  EXPECT_THAT(lanes_of(program_of("Interleaved1F1B", 5), 5, 4), ElementsAre(0, 1, 0, 1, 0));
  // All are in flight from the beginning to the end.
  EXPECT_THAT(lanes_of(program_of("LoopedBFS", 6), 6, 4), ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_THAT(lanes_of(program_of("LoopedBFS", 3), 3, 1), ElementsAre(0, 0, 0));
}

TEST(Lanes, AreForProgramsWithoutMessages) {
  EXPECT_FALSE(program_of("InterleavedZeroBubble", 4).has_messages);
  const Schedule made = make_schedule("1F1B", {.ranks = 2, .stages_per_rank = 1, .microbatches = 4});
  const auto lowered = lower(made, "send_recv", CommModel::kTagged);
  for (const int rank : {0, 1}) EXPECT_TRUE(compile(lowered, RankId(rank), {RankId(0), RankId(1)}).has_messages);
}

TEST(Lanes, AreOrderedByWhatStagesShare) {
  const auto stage = [](int index, const std::shared_ptr<torch::nn::Module>& module) {
    return make_stage(index, module, [](const StageCall& call) -> Value { return call.tensor(0); });
  };
  const auto with = [](const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& buffers = {}) {
    auto module = std::make_shared<torch::nn::Module>();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      module->register_parameter("p" + std::to_string(i), parameters[i]);
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) module->register_buffer("b" + std::to_string(i), buffers[i]);
    return module;
  };
  const at::Tensor tied = at::ones({2, 3});
  const at::Tensor state = at::ones({4});
  EXPECT_THAT(orders_of({stage(0, with({at::ones(2)})), stage(1, with({at::ones(2)})), stage(2, with({}))}),
              ElementsAre(0, 1, 2));
  // A view of the same memory is the same; what two stages share with a third, all three share.
  const auto orders = orders_of({stage(0, with({tied})), stage(1, with({at::ones(2)}, {state})),
                                 stage(2, with({tied.t()}, {state.slice(0, 1)})), stage(3, with({at::ones(2)}))});
  EXPECT_EQ(orders[0], orders[2]);
  EXPECT_EQ(orders[1], orders[2]);
  EXPECT_NE(orders[3], orders[2]);
}

class Watch : public testing::Test {
 protected:
  /// Made by an operation that is not watched.
  static at::Tensor from_before() {
    at::Tensor made;
    std::thread([&] { made = at::zeros({1}); }).join();
    return made;
  }

  at::Tensor weight = torch::ones({3, 3}, torch::requires_grad());
  TensorWatch watch{at::kCPU, [this](const c10::StorageImpl* memory) {
                      return weight.grad().defined() && weight.grad().storage().unsafeGetStorageImpl() == memory;
                    }};
};

TEST_F(Watch, FindsNothingWhereMicrobatchesAreApart) {
  at::Tensor input;
  at::Tensor running;
  std::thread([&] {
    input = at::ones({4, 3});
    running = at::zeros({3});
  }).join();
  for (std::size_t microbatch = 0; microbatch < 4; ++microbatch) {
    watch.enter(microbatch % 2, /*order=*/0);
    const at::Tensor output = at::linear(input.narrow(0, static_cast<std::int64_t>(microbatch), 1), weight).tanh();
    {
      const at::NoGradGuard no_graph;
      running.mul_(0.9).add_(output.detach().mean(0));
    }
    output.sum().backward();  // gradients are added up across lanes
  }
  EXPECT_EQ(watch.found(), "");
}

TEST_F(Watch, FindsWhatOneLaneComputesAndAnotherUses) {
  watch.enter(0, 0);
  const at::Tensor mask = at::ones({3, 3}).triu();
  (void)(mask * 2);
  EXPECT_EQ(watch.found(), "");
  watch.enter(1, 0);
  (void)at::cat({at::ones({1, 3}), mask.narrow(0, 0, 1)});  // a view, in a list
  EXPECT_THAT(watch.found(), testing::HasSubstr("computed for one microbatch and is used for another"));
}

TEST_F(Watch, FindsItInABackward) {
  watch.enter(0, 0);
  const at::Tensor loss = (at::linear(at::ones({1, 3}), weight).exp() * 3).sum();
  EXPECT_EQ(watch.found(), "");
  watch.enter(1, 0);
  loss.backward();
  EXPECT_NE(watch.found(), "");
}

TEST_F(Watch, FindsWhatSeveralOrdersChange) {
  const at::Tensor given = from_before();
  watch.enter(0, 0);
  given.add_(1);
  (void)(given * 2);
  watch.enter(1, 0);
  given.add_(1);
  EXPECT_EQ(watch.found(), "");
  watch.enter(1, 1);
  (void)(given * 2);
  EXPECT_THAT(watch.found(), testing::HasSubstr("used by several stages and changed in place"));
}

TEST_F(Watch, LetsSeveralOrdersReadTheSame) {
  at::Tensor given = from_before();
  for (const std::size_t order : {0, 1}) {
    watch.enter(order, order);
    (void)(given * 2);
  }
  EXPECT_EQ(watch.found(), "");
  watch.enter(0, 0);
  at::add_out(given, at::ones({1}), 1);
  EXPECT_NE(watch.found(), "");
}

}  // namespace
}  // namespace stagecraft
