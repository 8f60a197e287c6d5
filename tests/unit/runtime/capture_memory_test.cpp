#include "capture_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "use_watch.h"

namespace stagecraft {
namespace {

const auto kAlways = [] { return true; };
const auto kNobody = [](const c10::StorageImpl*) { return false; };

bool has(const std::vector<WeakMemory>& all, const at::Tensor& tensor) {
  return std::any_of(all.begin(), all.end(), [&](const WeakMemory& one) {
    return one._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl();
  });
}

TEST(CaptureMemory, KeepsWhatWasThereBefore) {
  at::Tensor mask = at::ones({4});
  const at::Tensor parameter = at::ones({4});
  const auto weak = mask.storage().getWeakStorageImpl();
  std::vector<GivenMemory> given;
  {
    CaptureMemory memory(at::kCPU, kAlways, [&](const c10::StorageImpl* one) {
      return one == parameter.storage().unsafeGetStorageImpl();
    });
    const at::Tensor x = at::zeros({4}) + mask.view({2, 2}).view({4}) * parameter;
    given = memory.take_given();
  }
  ASSERT_EQ(given.size(), 1U);
  EXPECT_EQ(given[0].storage->unsafeGetStorageImpl(), mask.storage().unsafeGetStorageImpl());
  EXPECT_FALSE(given[0].is_number);
  EXPECT_FALSE(given[0].is_ours_alone());
  mask = at::ones({5});
  EXPECT_TRUE(given[0].was_let_go());
  EXPECT_FALSE(weak.expired()) << "the graph still reads it";
  given.clear();
  EXPECT_TRUE(weak.expired());
}

/// What a sparse tensor is made of is seen as a result of `_values` and `_indices` first.
TEST(CaptureMemory, KnowsMemoryThatIsSeenAsAViewFirst) {
  const at::Tensor adjacency = at::eye(4).to_sparse();
  const at::Tensor values = adjacency._values();
  CaptureMemory memory(at::kCPU, kAlways, kNobody);
  const at::Tensor x = at::_sparse_mm(adjacency, at::ones({4, 2}));
  const at::Tensor weights = adjacency._values() * 2;
  const std::vector<WeakMemory> made = memory.made();
  EXPECT_FALSE(has(made, values)) << "it was there before";
  EXPECT_FALSE(has(made, adjacency._indices()));
  EXPECT_TRUE(has(made, x));
  EXPECT_TRUE(has(made, weights));
  const std::vector<GivenMemory> given = memory.take_given();
  EXPECT_TRUE(std::any_of(given.begin(), given.end(), [&](const GivenMemory& one) {
    return one.storage->unsafeGetStorageImpl() == values.storage().unsafeGetStorageImpl();
  }));
}

TEST(CaptureMemory, KnowsNumbersOnTheCpu) {
  at::Tensor temperature = at::scalar_tensor(2.0);
  const at::Tensor scales = at::full({2}, 3.0);
  const at::Tensor x = at::ones({4});
  std::vector<HostNumber> numbers;
  {
    CaptureMemory memory(at::kCUDA, kAlways, kNobody);
    (void)(x * temperature * 0.5 * at::scalar_tensor(4.0) + scales[1] + at::full({2}, 4.0)[0]);
    (void)(x * temperature);
    numbers = memory.take_numbers();
  }
  ASSERT_EQ(numbers.size(), 2U) << "neither numbers in the code, nor those that the step makes";
  const auto have_changed = [&] {
    return std::count_if(numbers.begin(), numbers.end(), [](const HostNumber& one) { return one.has_changed(); });
  };
  EXPECT_EQ(have_changed(), 0);
  temperature.fill_(5);
  EXPECT_EQ(have_changed(), 1);
  temperature.fill_(2);
  EXPECT_EQ(have_changed(), 0);
  temperature = at::scalar_tensor(2.0);
  EXPECT_EQ(have_changed(), 1) << "the step would read another tensor";
}

TEST(CaptureMemory, KnowsNumbersOnTheCpuThatAreReplaced) {
  at::Tensor temperature = at::scalar_tensor(2.0);
  CaptureMemory memory(at::kCUDA, kAlways, kNobody);
  temperature = temperature * 0.5;
  const std::vector<HostNumber> numbers = memory.take_numbers();
  ASSERT_EQ(numbers.size(), 1U);
  EXPECT_TRUE(numbers[0].has_changed());
}

/// Every graph holds what it reads; that does not count as somebody who has it.
TEST(CaptureMemory, KnowsThatNobodyHasWhatSeveralGraphsRead) {
  at::Tensor scales = at::full({2}, 3.0);
  at::Tensor mask = at::ones({4}, at::kMeta);
  std::vector<HostNumber> numbers;
  std::vector<GivenMemory> given;
  for (int graph = 0; graph < 2; ++graph) {
    CaptureMemory memory(at::kMeta, kAlways, kNobody);
    (void)(at::ones({4}, at::kMeta) * scales[0] * scales[1] * mask);
    for (const HostNumber& one : memory.take_numbers()) numbers.push_back(one);
    for (GivenMemory& one : memory.take_given()) given.push_back(std::move(one));
  }
  ASSERT_EQ(numbers.size(), 4U);
  EXPECT_EQ(std::count_if(given.begin(), given.end(), [](const GivenMemory& one) { return one.was_let_go(); }), 0);
  scales = mask = at::Tensor();
  for (const HostNumber& one : numbers) EXPECT_TRUE(one.was_let_go());
  ASSERT_EQ(given.size(), 4U) << "the mask and the scales, of each";
  for (const GivenMemory& one : given) EXPECT_TRUE(one.was_let_go());
}

/// From pinned memory, a graph copies anew in every replay.
TEST(CaptureMemory, KeepsWhatIsOnTheHost) {
  at::Tensor table = at::ones({4});
  CaptureMemory memory(at::kMeta, kAlways, kNobody);
  (void)table.mul(2);
  { (void)at::ones({3}).mul(2); }
  const std::vector<GivenMemory> given = memory.take_given();
  ASSERT_EQ(given.size(), 1U);
  EXPECT_FALSE(given[0].was_let_go());
  table = at::Tensor();
  EXPECT_TRUE(given[0].was_let_go());
}

TEST(CaptureMemory, FindsLeavesThatNobodyKeeps) {
  const at::Tensor weight = at::ones({4}).requires_grad_();
  const at::Tensor known = at::ones({4}).requires_grad_();
  CaptureMemory memory(at::kCPU, kAlways,
                       [&](const c10::StorageImpl* one) { return one == known.storage().unsafeGetStorageImpl(); });
  const at::Tensor inner = (known * 2).detach().requires_grad_();  // as between two stages
  (inner * 3).sum().backward();
  EXPECT_FALSE(memory.has_unknown_leaves());
  (inner * weight).sum().backward();
  EXPECT_TRUE(memory.has_unknown_leaves());
  EXPECT_TRUE(weight.grad().defined());
  memory.reset_unknown_leaves();
  EXPECT_FALSE(weight.grad().defined());
}

/// A mean is made first, and then written by a sum.
TEST(CaptureMemory, KnowsWhatOperationsMakeForOthers) {
  const at::Tensor x = at::ones({4, 4});
  CaptureMemory memory(at::kCPU, kAlways, kNobody);
  const at::Tensor kept = x.mean(0);
  { const at::Tensor dropped = x.mean(1) * 2; }
  EXPECT_TRUE(has(memory.made(), kept));
  EXPECT_EQ(memory.made().size(), 1U);
  std::vector<GivenMemory> given = memory.take_given();
  std::erase_if(given, [](const GivenMemory& one) { return one.is_inner; });
  ASSERT_EQ(given.size(), 1U);
  EXPECT_EQ(given[0].storage->unsafeGetStorageImpl(), x.storage().unsafeGetStorageImpl());
}

TEST(CaptureMemory, KnowsWhatOthersHaveKept) {
  CaptureMemory memory(at::kCPU, kAlways, kNobody);
  const at::Tensor kept = at::arange(6).view({2, 3});
  { const at::Tensor dropped = kept.neg(); }
  at::Tensor changed = at::ones({3});
  changed.neg_();
  EXPECT_EQ(memory.made().size(), 2U);
  EXPECT_TRUE(has(memory.made(), kept));
  EXPECT_TRUE(has(memory.made(), changed));
  EXPECT_THAT(memory.take_given(), testing::IsEmpty());
}

/// LibTorch keeps the state of its generators: a replay reads it where it was made.
TEST(CaptureMemory, LeavesOutWhatIsMadeBesideTheGraph) {
  bool is_captured = false;
  CaptureMemory memory(
      at::kCPU, [&] { return is_captured; }, kNobody);
  const at::Tensor beside = at::zeros({1});
  is_captured = true;
  const at::Tensor kept = at::zeros({1});
  is_captured = false;
  EXPECT_EQ(memory.made().size(), 1U);
  EXPECT_TRUE(has(memory.made(), kept));
}

/// LibTorch runs the backward of a GPU in a thread of its own.
TEST(CaptureMemory, SeesOperationsOfABackwardInAnotherThread) {
  const at::Tensor given = at::ones({4});
  const at::Tensor lost = at::ones({4});
  CaptureMemory memory(at::kCPU, kAlways, kNobody);
  const UseWatch watch({lost.storage().getWeakStorageImpl()});
  at::Tensor kept;
  std::thread([&, state = at::ThreadLocalState()] {
    const at::ThreadLocalStateGuard as_the_engine_does(state);
    kept = given + 1;
    (void)(lost + 1);
  }).join();
  EXPECT_TRUE(has(memory.made(), kept));
  EXPECT_EQ(watch.found(), "aten::add");
  std::thread([] { (void)(at::ones({4}) * 2); }).join();  // somebody else's
  std::vector<GivenMemory> all = memory.take_given();
  std::erase_if(all, [](const GivenMemory& one) { return one.is_ours_alone(); });  // numbers in the code
  EXPECT_EQ(all.size(), 2U);
}

}  // namespace
}  // namespace stagecraft
