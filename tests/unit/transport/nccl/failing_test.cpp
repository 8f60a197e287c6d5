// What a rank does and says when another one dies, or its own device fails.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <optional>

#include "coordinator.h"
#include "noting_nccl.h"
#include "support/message_of.h"
#include "support/patience.h"

namespace stagecraft::nccl {
namespace {

using testing::HasSubstr;
using namespace noting_nccl;

const Tag kActivation{MessageKind::kForward, StageId(0), StageId(1), MicrobatchId(2)};
const Tag kNext{MessageKind::kForward, StageId(0), StageId(1), MicrobatchId(3)};

/// Rank 0 of three. There is nothing behind the others but sockets.
class RankZero : public testing::Test {
 protected:
  explicit RankZero(c10::DeviceType device = c10::kCPU) : watch(std::make_shared<Watch>(device, kPatience)) {
    std::vector<sockets::Socket> own(3);
    for (std::size_t r = 1; r < 3; ++r) std::tie(own[r], others[r].emplace().socket) = connected_sockets();
    auto below = std::make_unique<sockets::SocketChannel>(RankId(0), std::move(own), std::nullopt, watch, nullptr);
    channel = below.get();
    transport.emplace(std::move(below));
    channel->start({[this](RankId rank, const std::string& text) {
                      transport->coordinator().lose(rank, text);
                      watch->abort_all();
                      ++losses;
                    },
                    [] { return false; }, [this](const std::string& text) { said.set_value(text); }});
  }
  ~RankZero() override {
    has_failed = false;
    result_of_connecting = 0;
    ended = kAll;
    const std::vector<std::shared_ptr<sockets::Line>> lines = channel->lines();
    channel->say_goodbye();  // so that what follows is not reported
    others = {};
    for (const auto& line : lines) {
      EXPECT_TRUE(line == nullptr || line->wait_until_over(Clock::now() + kPatience));
    }
  }

  /// Rank 1 begins to send, and NCCL answers with `result` when this rank connects.
  void connect_in_vain(int result) {
    result_of_connecting = result;
    others[1]->introduce();
    others[1]->announce(kActivation, {4});
  }

  std::shared_ptr<Watch> watch;
  std::atomic<int> losses = 0;
  std::promise<std::string> said;
  std::array<std::optional<FarRank>, 3> others;
  sockets::SocketChannel* channel = nullptr;
  std::optional<Transport> transport;
};

/// Its sender was already inside an action when it heard of the loss, and sent the envelope all the same.
TEST_F(RankZero, DoesNotWaitForWhatIsAnnouncedAfterALoss) {
  others[2].reset();
  ASSERT_TRUE(eventually([&] { return losses == 1; }));
  others[1]->introduce();
  others[1]->announce(kActivation, {4});
  others[1]->announce(kNext, {});
  ASSERT_TRUE(eventually([&] { return channel->is_coming(RankId(1), kNext); }));
  EXPECT_FALSE(channel->is_coming(RankId(1), kActivation));
  EXPECT_THAT(message_of([&] { transport->receive(RankId(1), kActivation, std::chrono::seconds(1)); }),
              HasSubstr("the process of rank 2 has ended in the middle of the run"));
  EXPECT_TRUE(transport->receive(RankId(1), kNext, kPatience).tensors.empty());
}

TEST_F(RankZero, SaysThatItsOwnDeviceHasFailed) {
  has_failed = true;
  others[1]->introduce();
  others[1]->announce(kActivation, {4});
  std::future<std::string> text = said.get_future();
  ASSERT_EQ(text.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(text.get(), std::string("rank 0: ") + kDeviceError);
  EXPECT_TRUE(channel->lines()[1]->wait_until_over(Clock::now() + kPatience));
  EXPECT_EQ(losses, 0) << "rank 1 is well";
}

/// A failed device makes everything else fail too, in words of its own.
TEST_F(RankZero, IsNotOutOfMemoryWhenItsDeviceHasFailed) {
  has_failed = true;
  others[1]->introduce();
  others[1]->announce(kActivation, {std::int64_t{1} << 50});
  std::future<std::string> text = said.get_future();
  ASSERT_EQ(text.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(text.get(), std::string("rank 0: ") + kDeviceError);
  EXPECT_EQ(losses, 0) << "rank 1 is well";
}

TEST_F(RankZero, BlamesItsOwnDeviceForAConnectionThatFails) {
  has_failed = true;
  connect_in_vain(1);
  std::future<std::string> text = said.get_future();
  ASSERT_EQ(text.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(text.get(), std::string("rank 0: ") + kDeviceError);
  EXPECT_EQ(losses, 0) << "rank 1 is well";
}

TEST_F(RankZero, DoesNotTakeARankForDeadThatNcclCannotConnectTo) {
  connect_in_vain(5);
  ASSERT_TRUE(eventually([&] { return losses == 1; }));
  EXPECT_THAT(message_of([&] { transport->receive(RankId(1), kActivation, std::chrono::seconds(1)); }),
              HasSubstr("rank 1 cannot send to this rank any more (ncclCommInitRank has failed"));
}

/// A rank whose device fails breaks off NCCL first, which the others notice.
TEST_F(RankZero, HearsWhyNcclHasFailed) {
  connect_in_vain(5);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_EQ(losses, 0);
  others[1]->introduce();
  others[1]->announce(kNext, {4});
  others[1]->tell({Notice::Kind::kGiveUp, 0, 1, "rank 1: CUDA error"});
  EXPECT_THAT(message_of([&] { transport->receive(RankId(1), kActivation, kPatience); }),
              testing::StartsWith("rank 1: CUDA error"));
  others[1].reset();
  EXPECT_TRUE(channel->lines()[1]->wait_until_over(Clock::now() + kPatience));
  EXPECT_EQ(losses, 0) << "what is known counts";
}

TEST_F(RankZero, LosesARankThatDiesWhileItIsToSayWhyNcclHasFailed) {
  connect_in_vain(5);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto begin = Clock::now();
  others[1].reset();
  ASSERT_TRUE(eventually([&] { return losses == 1; }));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
  EXPECT_THAT(message_of([&] { transport->receive(RankId(1), kActivation, kPatience); }),
              HasSubstr("the process of rank 1 has ended in the middle of the run"));
}

/// A device of its own, whose tensors go by NCCL.
class SendingRankZero : public RankZero {
 protected:
  SendingRankZero() : RankZero(c10::kMeta) {}
};

/// What rank 1 receives next would be taken for the message that it was told of.
TEST_F(SendingRankZero, EndsTheRunWhenWhatItHasAnnouncedDoesNotGo) {
  const auto send = [&](const Tag& tag) { transport->send(RankId(1), tag, {{at::ones({4}, at::kMeta)}, ""}); };
  send(kActivation);
  has_failed = true;
  EXPECT_THAT(message_of([&] { send(kNext); }), HasSubstr(kDeviceError));
  std::future<std::string> text = said.get_future();
  ASSERT_EQ(text.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(text.get(), std::string("rank 0 cannot send to rank 1 any more (") + kDeviceError + ")");
  has_failed = false;
  EXPECT_THAT(message_of([&] { send(kNext); }), HasSubstr("what rank 0 has sent by NCCL has not gone"));
}

/// Rank 1 may still be connecting, for a message that came before the goodbye.
TEST_F(RankZero, ClosesItsEndOnceTheOtherRankHasReleasedIt) {
  channel->say_goodbye();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(others[1]->socket.is_hung_up());
  others[1]->release();
  EXPECT_TRUE(eventually([&] { return others[1]->socket.is_hung_up(); }));
}

TEST(Communicator, IsIdleOnADeviceThatHasFailed) {
  Communicator ranks(c10::Device(c10::kCPU), new_id(), {RankId(0), RankId(1)}, 0, Use::kMessages);
  ASSERT_TRUE(ranks.wait_until_connected(Clock::now() + kPatience));
  ended = recorded.load();
  ASSERT_TRUE(ranks.issue("the sum", [](const Library&, Comm, Stream) {}));
  EXPECT_FALSE(ranks.is_idle());
  EXPECT_EQ(ranks.device_error(), std::nullopt);
  has_failed = true;
  EXPECT_EQ(ranks.overdue(std::chrono::milliseconds(0)), std::nullopt);
  EXPECT_TRUE(ranks.is_idle());
  EXPECT_EQ(ranks.device_error(), kDeviceError);
  has_failed = false;
  ended = kAll;
}

TEST(Watch, ReportsThatTheDeviceHasFailed) {
  std::promise<std::string> said;
  Watch watch(c10::kCPU, kPatience);
  watch.start({}, [&](const std::string& text, const std::function<void()>& /*abort_all*/) { said.set_value(text); });
  const auto ranks = watch.connect(new_id(), {RankId(0), RankId(1)}, 0, Use::kMessages);
  ASSERT_TRUE(ranks->wait_until_connected(Clock::now() + kPatience));
  ended = recorded.load();
  ASSERT_TRUE(ranks->issue("the sum", [](const Library&, Comm, Stream) {}));
  has_failed = true;
  std::future<std::string> text = said.get_future();
  ASSERT_EQ(text.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(text.get(), kDeviceError);
  has_failed = false;
  ended = kAll;
}

/// The other rank has died between the two: nothing else would end what this one has issued.
TEST(Communicator, IsAbortedWhileItWarmsUp) {
  is_stuck = true;
  const std::string id = new_id();
  Communicator ranks(c10::Device(c10::kCPU), id, {RankId(0), RankId(1)}, 0, Use::kMessages);
  EXPECT_TRUE(eventually([] { return waiting == 1; }));
  EXPECT_FALSE(ranks.wait_until_connected(Clock::now()));
  ranks.abort();
  EXPECT_EQ(times_aborted(id, 0), 1);
  EXPECT_TRUE(ranks.wait_until_connected(Clock::now()));
  is_stuck = false;
  EXPECT_TRUE(eventually([] { return waiting == 0; }));
  ranks.abort();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the thread that connects comes to its end
  EXPECT_EQ(times_aborted(id, 0), 1) << "it is gone after the first time";
  EXPECT_FALSE(ranks.issue("the sum", [](const Library&, Comm, Stream) {}));
}

TEST(Communicator, IsAbortedOnceItIsConnected) {
  slow_rank = 0;
  const std::string id = new_id();
  Communicator ranks(c10::Device(c10::kCPU), id, {RankId(0), RankId(1)}, 0, Use::kMessages);
  ranks.abort();
  EXPECT_TRUE(eventually([&] { return times_aborted(id, 0) == 1; }));
  slow_rank = -1;
}

}  // namespace
}  // namespace stagecraft::nccl
