// What a rank does about operations of NCCL that are on their way: waits for them, misses them, breaks them off.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <future>

#include "noting_nccl.h"
#include "support/patience.h"

namespace stagecraft::nccl {
namespace {

using testing::HasSubstr;
using namespace noting_nccl;

TEST(Communicator, IsOverdueFromWhenTheDeviceHasComeToAnOperation) {
  using std::chrono::milliseconds;
  Communicator ranks(c10::Device(c10::kCPU), new_id(), {RankId(0), RankId(1)}, 0, Use::kMessages);
  ASSERT_TRUE(ranks.wait_until_connected(Clock::now() + kPatience));
  ended = recorded.load();
  ASSERT_TRUE(ranks.issue("the sum", [](const Library&, Comm, Stream) {}));
  EXPECT_FALSE(ranks.is_idle());
  EXPECT_EQ(ranks.overdue(milliseconds(0)), std::nullopt) << "the device still computes";
  ++ended;
  EXPECT_EQ(ranks.overdue(milliseconds(30)), std::nullopt);
  std::this_thread::sleep_for(milliseconds(40));
  EXPECT_EQ(ranks.overdue(milliseconds(30)), "the sum");
  ended = kAll;
  EXPECT_TRUE(ranks.is_idle());
  EXPECT_EQ(ranks.overdue(milliseconds(0)), std::nullopt);
}

constexpr Timeout kSoon{300};

/// Two ranks that are connected; the second says goodbye while an operation of the first is on its way.
struct Farewell {
  Farewell(bool has_failed, Timeout limit)
      : watches{std::make_shared<Watch>(c10::kCPU, limit), std::make_shared<Watch>(c10::kCPU, limit)} {
    auto [first, second] = connected_sockets();
    for (std::size_t r = 0; r < 2; ++r) {
      std::vector<sockets::Socket> all(2);
      all[1 - r] = std::move(r == 0 ? first : second);
      channels[r] =
          std::make_unique<sockets::SocketChannel>(RankId(r), std::move(all), std::nullopt, watches[r], nullptr);
    }
    channels[0]->start({[this](RankId /*rank*/, const std::string& text) { lost.set_value(text); },
                        [has_failed] { return has_failed; },
                        {}});
    channels[1]->start({});
    const auto communicator = watches[0]->connect(new_id(), {RankId(0), RankId(1)}, 0, Use::kMessages);
    EXPECT_TRUE(communicator->wait_until_connected(Clock::now() + kPatience));
    ended = recorded.load();
    EXPECT_TRUE(communicator->issue("the sum", [](const Library&, Comm, Stream) {}));
    channels[1]->say_goodbye();
  }
  ~Farewell() {
    ended = kAll;
    channels[0]->say_goodbye();
    EXPECT_TRUE(channels[1]->lines()[0]->wait_until_over(Clock::now() + kPatience));
  }
  Farewell(const Farewell&) = delete;
  Farewell& operator=(const Farewell&) = delete;

  std::array<std::shared_ptr<Watch>, 2> watches;
  std::promise<std::string> lost;
  std::array<std::unique_ptr<sockets::SocketChannel>, 2> channels;
};

TEST(Farewell, WaitsForWhatIsOnItsWay) {
  Farewell two(/*has_failed=*/false, kPatience);
  sockets::Line& line = *two.channels[1]->lines()[0];
  EXPECT_FALSE(line.wait_until_released(Clock::now() + std::chrono::milliseconds(50)));
  ended = kAll;
  EXPECT_TRUE(line.wait_until_released(Clock::now() + kPatience));
  EXPECT_EQ(two.lost.get_future().wait_for(std::chrono::seconds(0)), std::future_status::timeout);
}

TEST(Farewell, ReportsWhatHasToBeBrokenOff) {
  Farewell two(/*has_failed=*/false, kSoon);
  std::future<std::string> text = two.lost.get_future();
  ASSERT_EQ(text.wait_for(kPatience), std::future_status::ready);
  EXPECT_THAT(text.get(),
              HasSubstr("the program of rank 1 has ended, and what rank 0 exchanges with it by NCCL did not"));
  EXPECT_TRUE(two.channels[1]->lines()[0]->wait_until_released(Clock::now() + kPatience));
}

TEST(Farewell, BreaksOffAfterAFailureWithoutAnotherReport) {
  Farewell two(/*has_failed=*/true, kSoon);
  EXPECT_TRUE(two.channels[1]->lines()[0]->wait_until_released(Clock::now() + kPatience));
  EXPECT_EQ(two.lost.get_future().wait_for(std::chrono::seconds(0)), std::future_status::timeout);
}

TEST(SocketChannel, SaysThatThereIsNoRoomForWhatNcclSends) {
  auto [receiver, sender] = connected_sockets();
  std::vector<sockets::Socket> all(2);
  all[1] = std::move(receiver);
  const auto watch = std::make_shared<Watch>(c10::kCPU, kPatience);
  sockets::SocketChannel channel(RankId(0), std::move(all), std::nullopt, watch, nullptr);
  std::promise<std::string> said;
  channel.start({{}, {}, [&](const std::string& text) { said.set_value(text); }});

  const FarRank far{std::move(sender)};
  far.introduce();
  far.announce({MessageKind::kForward, StageId(0), StageId(1), MicrobatchId(2)}, {std::int64_t{1} << 50});
  std::future<std::string> text = said.get_future();
  ASSERT_EQ(text.wait_for(kPatience), std::future_status::ready);
  EXPECT_THAT(text.get(), HasSubstr("rank 0 is out of memory: it has no room for 4503599627370496 bytes"));
  EXPECT_TRUE(channel.lines()[1]->wait_until_over(Clock::now() + kPatience));
}

}  // namespace
}  // namespace stagecraft::nccl
