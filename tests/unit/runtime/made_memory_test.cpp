#include "made_memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace stagecraft {
namespace {

std::vector<WeakMemory> made_by(const std::vector<at::Tensor>& tensors) {
  std::vector<WeakMemory> all;
  for (const at::Tensor& tensor : tensors) all.push_back(tensor.storage().getWeakStorageImpl());
  return all;
}

TEST(MadeMemory, FindsTheSameBytesAmongWhatWasMade) {
  const at::Tensor mask = at::tensor({1.0, NAN, 2.0});
  const at::Tensor other = at::tensor({1.0, 3.0, 2.0});
  const at::Tensor shorter = mask.narrow(0, 0, 2).clone();
  const at::Tensor elsewhere = at::empty({3}, at::TensorOptions(at::kMeta).dtype(at::kDouble));
  std::vector<WeakMemory> made = made_by({other, shorter, elsewhere});
  made.push_back(made_by({mask.clone()}).front());  // nobody has it any more
  EXPECT_FALSE(is_among(mask.storage(), made));
  const at::Tensor same = mask.clone();
  made.push_back(made_by({same}).front());
  EXPECT_TRUE(is_among(mask.storage(), made));
}

TEST(MadeMemory, MovesOutWhatOthersHaveKept) {
  const at::Tensor kept = at::arange(6);
  const at::Tensor view = kept.narrow(0, 2, 2);
  auto* const before = static_cast<std::int64_t*>(kept.mutable_data_ptr());
  const std::vector<MovedOut> moved_out = move_out(made_by({kept}));
  ASSERT_EQ(moved_out.size(), 1U);
  EXPECT_EQ(moved_out[0].left.const_data_ptr(), before);
  EXPECT_NE(kept.const_data_ptr(), before);
  before[2] = 77;  // as a replay would
  EXPECT_EQ(kept[2].item<std::int64_t>(), 2);
  EXPECT_EQ(view[0].item<std::int64_t>(), 2);
  moved_out[0].follow();
  EXPECT_EQ(kept[2].item<std::int64_t>(), 77);
  EXPECT_EQ(view[0].item<std::int64_t>(), 77);
}

TEST(MadeMemory, MovesOutWhatNobodyKeepsLater) {
  at::Tensor kept = at::arange(6);
  const std::vector<MovedOut> moved_out = move_out(made_by({kept}));
  EXPECT_TRUE(moved_out.at(0).has_owner());
  kept.reset();
  EXPECT_FALSE(moved_out[0].has_owner());
  moved_out[0].follow();
  EXPECT_EQ(moved_out[0].left.numel(), 48);
}

TEST(MadeMemory, MakesWhatWasNotComputedNaN) {
  std::vector<at::Tensor> kept;
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    kept.push_back(at::ones({3}, at::TensorOptions(type)));
  }
  const std::vector<WeakMemory> made = made_by(kept);
  kept.emplace_back(at::ones({3}));  // of somebody else
  fill_with_nan(made);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(kept[i].isnan().all().item<bool>()) << kept[i];
  EXPECT_TRUE(kept[4].eq(1).all().item<bool>());
}

}  // namespace
}  // namespace stagecraft
