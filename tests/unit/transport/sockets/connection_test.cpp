// How ranks come to be connected, and how they part.

#include "sockets/socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <cstring>
#include <future>
#include <optional>
#include <sstream>
#include <thread>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/c10d.h"
#include "stagecraft/transport/sockets.h"
#include "support/message_of.h"
#include "support/patience.h"

namespace stagecraft {
namespace {

using sockets::Address;
using sockets::Clock;
using sockets::Listener;
using sockets::Socket;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

bool anybody(const Socket& /*socket*/) { return true; }

TEST(SocketConnection, NamesARankThatDiesWhileTheOthersConnect) {
  std::optional<Listener> listener(std::in_place);  // of rank 0
  const std::string address = listener->address().to_text();
  std::thread rank_0([&] {
    const auto until = Clock::now() + kPatience;
    const Socket caller = listener->accept(until);
    char first = 0;
    EXPECT_TRUE(caller.read_all(&first, 1, until));  // the connection is reset, because the rest is never read
    listener.reset();
  });
  const auto exchange = [&](const std::string& own) {
    return std::vector{own.substr(0, own.rfind('\n') + 1) + address, own};
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

/// A rank 1 that greets rank 0, and is not heard of again: its host is gone, or its process was stopped.
class SilentRank {
 public:
  SocketConnection::Exchange exchange() {
    return [this](const std::string& of_rank_0) {
      std::istringstream lines(of_rank_0);
      std::string secret;
      std::string address;
      for (int line = 0; line < 3; ++line) std::getline(lines, secret);
      std::getline(lines, address);
      socket_ = std::async(std::launch::async, [=] {
        EXPECT_FALSE(is_let_in(address, secret, 1)) << "that is another rank's";
        return call(address, secret, 0);
      });
      return std::vector{of_rank_0, of_rank_0};
    };
  }

 private:
  static Socket call(const std::string& address, const std::string& secret, std::int32_t to) {
    const auto until = Clock::now() + kPatience;
    const auto answers = [&](const Socket& socket) {
      std::array<char, 40> greeting{};
      secret.copy(greeting.data(), 32);
      const std::int32_t from = 1;
      std::memcpy(&greeting[32], &from, sizeof from);
      std::memcpy(&greeting[36], &to, sizeof to);
      iovec part{greeting.data(), greeting.size()};
      char answer = 0;
      return socket.write({&part, 1}) == greeting.size() && socket.read_all(&answer, 1, until);
    };
    return connect_to(Address::from_text(address), answers, until);
  }
  static bool is_let_in(const std::string& address, const std::string& secret, std::int32_t to) {
    return call(address, secret, to).is_open();
  }

  std::future<Socket> socket_;
};

TEST(SocketConnection, LosesARankThatDoesNotAnswerWhenItsOwnProgramHasEnded) {
  SilentRank other;
  SocketConnection connection(RankId(0), 2, other.exchange(), {{}, {}, {}, std::chrono::seconds(1)});
  EXPECT_EQ(connection.lost(), std::nullopt);
  EXPECT_FALSE(connection.finish(std::nullopt));
  EXPECT_THAT(connection.lost().value_or(""), HasSubstr("rank 1 has not answered for 5"));
}

/// Rank 1 is still busy for longer than rank 0 would wait for an answer.
TEST(SocketConnection, WaitsForARankWhoseProgramGoesOn) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto run = [&](int rank) {
    SocketConnection connection(RankId(rank), 2, exchange_by(store, RankId(rank), 2, "", kPatience),
                                {{}, {}, {}, std::chrono::seconds(1)});
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(9));
    return connection.finish(std::nullopt);
  };
  auto other = std::async(std::launch::async, run, 1);
  const auto begin = Clock::now();
  EXPECT_TRUE(run(0));
  EXPECT_GT(Clock::now() - begin, std::chrono::seconds(8));
  EXPECT_TRUE(other.get());
}

// --- by the store of a launcher ---

/// What the ranks of one start hear, each in a thread; they come one after the other.
std::vector<std::vector<std::string>> meet(const c10::intrusive_ptr<c10d::Store>& store, const std::string& start,
                                           const std::vector<int>& order) {
  std::vector<std::future<std::vector<std::string>>> heard(order.size());
  for (const int rank : order) {
    heard[RankId(rank).index()] = std::async(std::launch::async, [=, ranks = static_cast<int>(order.size())] {
      return exchange_by(store, RankId(rank), ranks, "job", kPatience)(start + std::to_string(rank));
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::vector<std::vector<std::string>> all;
  for (auto& one : heard) all.push_back(one.get());
  return all;
}

TEST(ExchangeByStore, TellsWhatRanksOfThisStartSay) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  int start = 0;
  for (const std::vector<int>& order : {std::vector{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}}) {
    const std::string name = std::string("start\n") + std::to_string(start++) + " of rank ";
    for (const auto& heard : meet(store, name, order)) {
      EXPECT_THAT(heard, ElementsAre(name + "0", name + "1", name + "2"));
    }
  }
}

TEST(ExchangeByStore, NamesARankThatHasNotCome) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto come = [&](int rank) {
    return std::async(std::launch::async, [=] {
      return message_of([&] { exchange_by(store, RankId(rank), 3, "job", std::chrono::milliseconds(300))("text"); });
    });
  };
  auto zero = come(0);
  auto two = come(2);
  EXPECT_THAT(zero.get(), HasSubstr("rank 0 has not heard of rank 1 in the store of the launcher"));
  EXPECT_THAT(two.get(), HasSubstr("rank 2 has not heard of rank 0"));
}

/// Some ranks of the start before had come; one of them had died before.
TEST(ExchangeByStore, DoesNotHearOfRanksThatHaveWaitedInVain) {
  for (const int missing : {0, 1, 2}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::future<std::string>> in_vain;
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == missing) continue;
      in_vain.push_back(std::async(std::launch::async, [=] {
        return message_of([&] { exchange_by(store, RankId(rank), 3, "job", std::chrono::milliseconds(100))("old"); });
      }));
    }
    for (auto& one : in_vain) EXPECT_THAT(one.get(), HasSubstr("has not heard of"));
    for (const auto& heard : meet(store, "new ", {0, 1, 2})) {
      EXPECT_THAT(heard, ElementsAre("new 0", "new 1", "new 2")) << "rank " << missing << " was missing";
    }
  }
}

// --- addresses ---

TEST(Socket, TriesTheNextAddressWhenAnotherProgramAnswers) {
  const Listener listener;
  Address address = listener.address();
  address.host = "elsewhere";
  address.numbers = {"127.0.0.1", "127.0.0.2", "127.0.0.3"};
  int calls = 0;
  const auto until = Clock::now() + kPatience;
  EXPECT_TRUE(connect_to(
                  address, [&](const Socket& /*socket*/) { return ++calls == 3; }, until)
                  .is_open());
  calls = 0;
  EXPECT_FALSE(connect_to(
                   address, [&](const Socket& /*socket*/) { return ++calls > 3; }, until)
                   .is_open());
  EXPECT_EQ(calls, 3) << "nobody else will answer there";
}

/// Copies of a virtual machine may all say that they are the same host.
TEST(Socket, TriesOtherAddressesThanThatOfTheOwnHost) {
  const int raw = ::socket(AF_INET, SOCK_STREAM, 0);
  const Socket listening(raw);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(0x7f000003);
  socklen_t size = sizeof own;
  ASSERT_EQ(::bind(raw, reinterpret_cast<const sockaddr*>(&own), size), 0);
  ASSERT_EQ(::listen(raw, 1), 0);
  ASSERT_EQ(::getsockname(raw, reinterpret_cast<sockaddr*>(&own), &size), 0);
  Address address = Listener().address();
  address.port = ntohs(own.sin_port);
  address.numbers = {"127.0.0.3"};
  EXPECT_TRUE(connect_to(address, anybody, Clock::now() + kPatience).is_open());
}

TEST(Socket, EndsWithItsProcessAlsoWhenAChildOfThatGoesOn) {
  const Listener listener;
  Socket own = connect_to(listener.address(), anybody, Clock::now() + kPatience);
  const Socket other = listener.accept(Clock::now() + kPatience);
  ASSERT_TRUE(own.is_open() && other.is_open());
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  EXPECT_FALSE(other.wait_to_read(Clock::now() + std::chrono::milliseconds(50)));
  own.close();
  EXPECT_TRUE(other.wait_to_read(Clock::now() + kPatience));
  EXPECT_TRUE(other.is_hung_up());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace stagecraft
