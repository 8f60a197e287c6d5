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
    awaited.clear();
    observed = std::thread::id();
  });
}

TEST(BesideThread, AWaitIsForItsTaskAndNotForThoseThatWereStartedLater) {
  run(1, [](Rank& rank) {
    BesideThread beside(*rank.group, c10::kMeta);
    std::uint64_t until_second = 0;
    std::uint64_t in_second = 0;
    const BesideThread::Ticket first = beside.start("in the test", [] {});
    const BesideThread::Ticket second = beside.start("in the test", [&] {
      until_second = recorded;
      c10::Event issued(c10::kMeta);
      issued.record(current_stream(c10::kMeta));
      in_second = recorded;
    });
    beside.wait(second);  // both are issued
    observed = std::this_thread::get_id();
    beside.wait(first);
    const Order expected{{beside.stream()->id(), current_stream(c10::kMeta).id()}};
    EXPECT_EQ(std::exchange(blocked, {}), expected);
    EXPECT_LE(std::exchange(awaited, {}).back(), until_second);
    beside.wait(second);  // again, in case another stream wants to use its results
    EXPECT_EQ(std::exchange(blocked, {}), expected);
    EXPECT_GT(std::exchange(awaited, {}).back(), in_second);
    observed = std::thread::id();
    beside.finish();
  });
}

}  // namespace
}  // namespace stagecraft
