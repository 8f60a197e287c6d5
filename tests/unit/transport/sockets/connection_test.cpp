// How ranks come to be connected.

#include "stagecraft/transport/sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "sockets/socket.h"
#include "stagecraft/core/error.h"
#include "support/patience.h"

namespace stagecraft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(SocketConnection, NamesARankThatDiesWhileTheOthersConnect) {
  const sockets::Listener listener;  // of rank 0
  std::thread rank_0([&] {
    const auto until = sockets::Clock::now() + kPatience;
    const sockets::Socket caller = listener.accept(until);
    char first = 0;
    EXPECT_TRUE(caller.read_all(&first, 1, until));  // the connection is reset, because the rest is never read
  });
  const auto exchange = [&](const std::string& own) {
    return std::vector{own.substr(0, own.rfind('\n') + 1) + listener.address().to_text(), own};
  };
  try {
    const SocketConnection connection(RankId(1), 2, exchange, {{}, {}, {}, kPatience});
    ADD_FAILURE() << "it has connected";
  } catch (const TransportError& error) {
    EXPECT_EQ(error.peer(), RankId(0));
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 cannot reach rank 0 by TCP"), HasSubstr("reset by peer"),
                                    HasSubstr("is it running")));
  }
  rank_0.join();
}

}  // namespace
}  // namespace stagecraft
