#include "capture_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace stagecraft {
namespace {

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
  std::vector<c10::Storage> given;
  {
    CaptureMemory memory(
        at::kCPU, [&](const c10::StorageImpl* one) { return one == parameter.storage().unsafeGetStorageImpl(); });
    const at::Tensor x = at::zeros({4}) + mask.view({2, 2}).view({4}) * parameter;
    given = memory.take_given();
  }
  ASSERT_EQ(given.size(), 1U);
  EXPECT_EQ(given[0].unsafeGetStorageImpl(), mask.storage().unsafeGetStorageImpl());
  mask = at::ones({5});
  EXPECT_FALSE(weak.expired()) << "the graph still reads it";
  given.clear();
  EXPECT_TRUE(weak.expired());
}

TEST(CaptureMemory, KnowsWhatOthersHaveKept) {
  CaptureMemory memory(at::kCPU, kNobody);
  const at::Tensor kept = at::arange(6).view({2, 3});
  { const at::Tensor dropped = kept.neg(); }
  at::Tensor changed = at::ones({3});
  changed.neg_();
  EXPECT_EQ(memory.made().size(), 2U);
  EXPECT_TRUE(has(memory.made(), kept));
  EXPECT_TRUE(has(memory.made(), changed));
  EXPECT_THAT(memory.take_given(), testing::IsEmpty());
}

TEST(CaptureMemory, MovesOutWhatOthersHaveKept) {
  std::optional<CaptureMemory> memory(std::in_place, at::kCPU, kNobody);
  const at::Tensor kept = at::arange(6);
  const at::Tensor view = kept.narrow(0, 2, 2);
  const std::vector<WeakMemory> made = memory->made();
  memory.reset();
  auto* const before = static_cast<std::int64_t*>(kept.mutable_data_ptr());
  const std::vector<c10::DataPtr> left = move_out(made);
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].get(), before);
  before[2] = 77;  // as a replay would
  EXPECT_EQ(kept[2].item<std::int64_t>(), 2);
  EXPECT_EQ(view[0].item<std::int64_t>(), 2);
  EXPECT_NE(kept.const_data_ptr(), before);
}

TEST(CaptureMemory, TellsOfAUse) {
  const at::Tensor bad = at::ones({4});
  const at::Tensor good = at::ones({4});
  {
    const UseWatch watch({bad.storage().getWeakStorageImpl()});
    (void)(good * 2);
    EXPECT_EQ(watch.found(), "");
    (void)at::cat({good, bad.view({4})});
    EXPECT_THAT(watch.found(), testing::HasSubstr("aten::"));
  }
  const UseWatch none({});
  (void)(bad * 2);
  EXPECT_EQ(none.found(), "");
}

}  // namespace
}  // namespace stagecraft
