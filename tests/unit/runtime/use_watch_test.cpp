#include "use_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace stagecraft {
namespace {

TEST(UseWatch, TellsOfAUse) {
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
