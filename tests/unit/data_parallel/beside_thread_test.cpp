#include "beside_thread.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stagecraft/transport/streams.h"
#include "unit/transport/nccl/noting_nccl.h"

namespace stagecraft {
namespace {

using namespace noting_nccl;

TEST(BesideThread, RestsOnTheDeviceTooAfterAFailure) {
  run(1, [](Rank& rank) {
    BesideThread beside(*rank.group, c10::kMeta);  // any device but the CPU has a stream beside
    beside.start("in the test", [] { throw std::runtime_error("it has failed"); });
    observed = std::this_thread::get_id();
    EXPECT_TRUE(beside.rest());
    const Order expected{{beside.stream()->id(), current_stream(c10::kMeta).id()}};
    EXPECT_EQ(std::exchange(blocked, {}), expected);
    EXPECT_FALSE(beside.rest());
    EXPECT_EQ(blocked, Order()) << "nothing was started since";
    observed = std::thread::id();
  });
}

}  // namespace
}  // namespace stagecraft
