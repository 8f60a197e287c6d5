// Collectives by an NCCL that only notes what is issued to it, on a CPU whose events end when the test says so.

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "beside_thread.h"
#include "nccl/nccl_group.h"
#include "sockets/socket_channel.h"
#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"
#include "support/message_of.h"
#include "support/patience.h"

namespace {

constexpr std::uint64_t kAll = UINT64_MAX;
std::atomic<std::uint64_t> recorded = 0;
std::atomic<std::uint64_t> ended = kAll;  // events up to this number

struct Event {
  std::uint64_t number;
  c10::StreamId stream;
};
using Order = std::vector<std::pair<c10::StreamId, c10::StreamId>>;
Order blocked;  // the second waits for the first; of the one thread that a test looks at
std::atomic<std::thread::id> observed;

c10::Stream fresh_stream(c10::DeviceType type) {
  static std::atomic<std::int64_t> last = 0;
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(type, -1), ++last);
}

template <c10::DeviceType kType>
struct Guard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  [[nodiscard]] c10::Stream getStreamFromGlobalPool(c10::Device /*device*/, bool /*is_urgent*/) const override {
    return fresh_stream(kType);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = {++recorded, stream.id()};
  }
  void* getStreamNativeHandle(const c10::Stream /*stream*/) const override { return nullptr; }
  void block(void* event, const c10::Stream& stream) const override {
    if (std::this_thread::get_id() == observed.load()) {
      blocked.emplace_back(static_cast<Event*>(event)->stream, stream.id());
    }
  }
  bool queryEvent(void* event) const override { return static_cast<Event*>(event)->number <= ended; }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
};

template <c10::DeviceType kType>
const c10::impl::DeviceGuardImplInterface* replaced() {
  return c10::impl::device_guard_impl_registry[static_cast<std::size_t>(kType)].exchange(new Guard<kType>);
}
const std::array kReplaced{replaced<c10::kCPU>(), replaced<c10::kMeta>()};

/// What was issued to one rank's communicator.
using Log = std::vector<std::string>;
std::mutex logs_mutex;
std::map<std::pair<std::string, int>, Log> logs;  // by id and rank
std::atomic<int> ids = 0;
std::atomic<int> slow_rank = -1;  // connects later than the others

int note(stagecraft::nccl::Comm comm, const char* what, std::size_t count) {
  const std::lock_guard lock(logs_mutex);
  static_cast<Log*>(comm)->push_back(what + std::to_string(count));
  return 0;
}

}  // namespace

using Comm = stagecraft::nccl::Comm;
using Stream = stagecraft::nccl::Stream;

// Found by the names that NCCL's library has.
extern "C" {
int ncclGetVersion(int* version) { return *version = 23000, 0; }
int ncclGetUniqueId(stagecraft::nccl::Id* id) { return id->bytes[0] = static_cast<char>(++ids), 0; }
int ncclCommInitRank(Comm* comm, int /*ranks*/, stagecraft::nccl::Id id, int rank) {
  if (rank == slow_rank) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::lock_guard lock(logs_mutex);
  *comm = &logs[{std::string(id.bytes, sizeof id.bytes), rank}];
  return 0;
}
int ncclCommAbort(Comm /*comm*/) { return 0; }
const char* ncclGetErrorString(int /*result*/) { return "an error"; }
const char* ncclGetLastError(Comm /*comm*/) { return ""; }
int ncclSend(const void*, std::size_t, int, int, Comm, Stream) { return 0; }
int ncclRecv(void*, std::size_t, int, int, Comm, Stream) { return 0; }
int ncclBroadcast(const void*, void*, std::size_t count, int, int, Comm comm, Stream) {
  return note(comm, "broadcast ", count);
}
int ncclAllReduce(const void*, void*, std::size_t count, int, int, Comm comm, Stream) {
  return note(comm, "sum ", count);
}
int ncclAllGather(const void*, void*, std::size_t count, int, Comm comm, Stream) {
  return note(comm, "gather ", count);
}
int ncclReduceScatter(const void*, void*, std::size_t count, int, int, Comm comm, Stream) {
  return note(comm, "scatter ", count);
}
int ncclGroupStart() { return 0; }
int ncclGroupEnd() { return 0; }
}

namespace stagecraft {

// In place of the library's, which refuse without CUDA.
bool has_streams(c10::Device /*device*/) { return true; }
c10::Stream unshared_stream(c10::Device device, bool /*is_urgent*/) { return fresh_stream(device.type()); }
std::string place_of_gpu(c10::Device device) { return device.str(); }

namespace nccl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Throws in place of the message that arrives as the n-th from now on.
class FailingChannel : public Channel {
 public:
  explicit FailingChannel(std::unique_ptr<Channel> below) : below_(std::move(below)) {}
  void fail_at(int message) { left_ = message; }

  [[nodiscard]] RankId rank() const override { return below_->rank(); }
  [[nodiscard]] int ranks() const override { return below_->ranks(); }
  [[nodiscard]] CommModel model() const override { return below_->model(); }
  void send(RankId to, const Tag& tag, Message message, std::uint64_t step) override {
    below_->send(to, tag, std::move(message), step);
  }
  void post(RankId from, const Tag& tag) override { below_->post(from, tag); }
  std::optional<Message> take(RankId from, const Tag& tag) override {
    std::optional<Message> message = below_->take(from, tag);
    if (message && --left_ == 0) throw std::runtime_error("the message was lost");
    return message;
  }
  bool is_coming(RankId from, const Tag& tag) override { return below_->is_coming(from, tag); }
  void end_step(std::uint64_t next, bool failed) override { below_->end_step(next, failed); }
  void listen(Listener listener) override { below_->listen(std::move(listener)); }
  void tell(RankId to, const Notice& notice) override { below_->tell(to, notice); }
  std::uint64_t news() override { return below_->news(); }
  void wait_for_news(std::uint64_t seen, Clock::time_point since, Clock::time_point until) override {
    below_->wait_for_news(seen, since, until);
  }
  void wake() override { below_->wake(); }
  std::unique_ptr<Group> make_group(Transport& transport, const std::vector<RankId>& members, std::int32_t id,
                                    Timeout timeout, const std::string& name) override {
    return below_->make_group(transport, members, id, timeout, name);
  }
  void recover(Transport& transport, Timeout timeout) override { below_->recover(transport, timeout); }

 private:
  std::unique_ptr<Channel> below_;
  int left_ = 0;
};

/// One of two ranks, with a group of both.
struct Rank {
  Rank(int socket, int number) {
    std::vector<sockets::Socket> all(2);
    all[static_cast<std::size_t>(1 - number)] = sockets::Socket(socket);
    auto below = std::make_unique<sockets::SocketChannel>(RankId(number), std::move(all), std::nullopt, watch, nullptr);
    line = below->lines()[static_cast<std::size_t>(1 - number)];
    sockets::SocketChannel& whole = *below;
    auto failing = std::make_unique<FailingChannel>(std::move(below));
    channel = failing.get();
    transport = std::make_unique<Transport>(std::move(failing));
    whole.start({});
    make_group();
  }
  ~Rank() {
    group.reset();
    transport.reset();
    EXPECT_TRUE(line->wait_until_over(Clock::now() + kPatience));
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void make_group(const std::vector<RankId>& members = {RankId(0), RankId(1)}) {
    group = transport->make_group(members, kPatience, "the group");
  }
  /// One step. On the last member of the group, fails at this message (0: at none).
  void step(const std::function<void(Group&)>& work, int failing_message = 0) {
    if (group->place() == 1) channel->fail_at(failing_message);
    try {
      work(*group);
    } catch (const std::exception& error) {
      transport->abort({transport->rank(), error.what()});
    }
    const std::optional<Failure> failure = transport->settle(kPatience);
    if (failing_message > 0) {
      EXPECT_THAT(failure.value_or(Failure{}).message, HasSubstr("the message was lost"));
    } else {
      EXPECT_EQ(failure.value_or(Failure{}).message, "");
    }
  }

  std::shared_ptr<Watch> watch = std::make_shared<Watch>(c10::Device(c10::kCPU), kPatience);
  std::shared_ptr<sockets::Line> line;
  FailingChannel* channel;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Group> group;
};

/// Runs it on two ranks. Returns what each issued.
std::vector<Log> run(const std::function<void(Rank&)>& program) {
  logs.clear();
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      Rank rank(ends[static_cast<std::size_t>(r)], r);
      program(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Log> all;
  for (const auto& [key, log] : logs) all.push_back(log);
  return all;
}

std::function<void(Group&)> sum_of(std::int64_t size) {
  return [size](Group& group) { group.all_reduce(torch::ones({size})); };
}

TEST(NcclGroup, IssuesTheSameOnAllRanksAfterAFailureOnOne) {
  // With a communicator, the only message of a collective that rank 1 gets ends the round.
  const auto all = run([](Rank& rank) {
    rank.step(sum_of(1));
    rank.step(sum_of(2), /*failing_message=*/1);
    rank.step([](Group& group) {
      group.broadcast_into(torch::ones({3}), 0);
      (void)group.all_gather(torch::ones({4}));
      (void)group.reduce_scatter(torch::ones({6}));
    });
  });
  const auto expected = ElementsAre("sum 1", "sum 2", "broadcast 12", "gather 16", "scatter 3");
  EXPECT_THAT(all, ElementsAre(expected, expected));
}

/// The devices of the others wait for it, and the program may wait for its device before it calls the group again.
TEST(NcclGroup, MakesUpForACollectiveAsSoonAsTheStepHasFailed) {
  const auto all = run([](Rank& rank) {
    rank.step(sum_of(1));
    rank.step(sum_of(2), /*failing_message=*/1);
  });
  const auto expected = ElementsAre("sum 1", "sum 2");
  EXPECT_THAT(all, ElementsAre(expected, expected));
}

/// Which tells all ranks how far they have come.
TEST(NcclGroup, MakesUpForWhatRankZeroHasLeftOut) {
  const auto all = run([](Rank& rank) {
    rank.make_group({RankId(1), RankId(0)});
    rank.step(sum_of(1));
    rank.step(sum_of(2), /*failing_message=*/1);
  });
  const auto expected = ElementsAre("sum 1", "sum 2");
  EXPECT_THAT(all, ElementsAre(expected, expected));
}

TEST(NcclGroup, MakesUpForCollectivesAfterSeveralFailures) {
  const auto all = run([](Rank& rank) {
    rank.step(sum_of(1));
    rank.step(sum_of(2), /*failing_message=*/1);
    rank.step([](Group&) { throw std::runtime_error("the message was lost"); }, /*failing_message=*/9);
    rank.step(sum_of(3), /*failing_message=*/1);
    rank.step(sum_of(4));
  });
  const auto expected = ElementsAre("sum 1", "sum 2", "sum 3", "sum 4");
  EXPECT_THAT(all, ElementsAre(expected, expected));
}

/// Two threads of a rank: one collective of each group is under way when the step fails. It may be their first.
TEST(NcclGroup, MakesUpForCollectivesOfTwoGroups) {
  for (const bool is_first : {false, true}) {
    SCOPED_TRACE(is_first);
    const int failing_message = is_first ? 3 : 1;  // see ConnectsAfterAFailureInItsFirstCollective
    const auto all = run([&](Rank& rank) {
      const std::unique_ptr<Group> other = std::move(rank.group);
      rank.make_group();
      if (!is_first) {
        rank.step([&](Group& group) {
          group.all_reduce(torch::ones({1}));
          other->all_reduce(torch::ones({2}));
        });
      }
      rank.step(
          [&](Group& group) {
            EXPECT_EQ(message_of([&] { group.all_reduce(torch::ones({3})); }),
                      rank.transport->rank() == RankId(1) ? "the message was lost" : "nothing was thrown");
            if (rank.transport->rank() == RankId(1)) rank.channel->fail_at(failing_message);
            other->all_reduce(torch::ones({4}));
          },
          failing_message);
    });
    using testing::UnorderedElementsAre;
    const Log of_group = is_first ? Log{"sum 3"} : Log{"sum 1", "sum 3"};
    const Log of_other = is_first ? Log{"sum 4"} : Log{"sum 2", "sum 4"};
    EXPECT_THAT(all, UnorderedElementsAre(of_group, of_group, of_other, of_other));
  }
}

TEST(NcclGroup, ConnectsBeforeItMakesUpForItsFirstCollective) {
  slow_rank = 1;
  const auto all = run([](Rank& rank) { rank.step(sum_of(1), /*failing_message=*/3); });
  slow_rank = -1;
  EXPECT_THAT(all, ElementsAre(ElementsAre("sum 1"), ElementsAre("sum 1")));
}

/// Between two steps nothing is made up for: wrong sums are refused.
TEST(NcclGroup, RefusesToGoOnWhereMembersHaveIssuedDifferentCollectives) {
  run([](Rank& rank) {
    rank.step(sum_of(1));
    if (rank.transport->rank() == RankId(1)) rank.channel->fail_at(1);
    const auto sum = [&](std::int64_t size) { rank.group->all_reduce(torch::ones({size})); };
    EXPECT_THAT(message_of([&] { sum(2); }),
                HasSubstr(rank.transport->rank() == RankId(1) ? "the message was lost" : "nothing was thrown"));
    EXPECT_THAT(message_of([&] { sum(3); }),
                HasSubstr("rank 0 has taken part in 2 collectives of the group by NCCL, rank 1 in 1, and what is "
                          "missing cannot be made up for"));
  });
}

TEST(NcclGroup, ConnectsAfterAFailureInItsFirstCollective) {
  // The round, the id, the round with it.
  for (const int message : {1, 2, 3}) {
    const auto all = run([&](Rank& rank) {
      rank.step(sum_of(1), message);
      rank.step(sum_of(2));
    });
    ASSERT_EQ(all.size(), 2U) << message;
    EXPECT_EQ(all[0], all[1]) << message;
    EXPECT_EQ(all[0].back(), "sum 2");
  }
}

TEST(NcclGroup, MakesUpForWhatAnEarlierGroupHasLeftOut) {
  const auto all = run([](Rank& rank) {
    rank.step(sum_of(1));
    rank.step(sum_of(2), /*failing_message=*/1);
    rank.make_group();
    rank.step(sum_of(3));
  });
  const auto expected = ElementsAre("sum 1", "sum 2", "sum 3");
  EXPECT_THAT(all, ElementsAre(expected, expected));
}

TEST(Communicator, IsOverdueFromWhenTheDeviceHasComeToAnOperation) {
  using std::chrono::milliseconds;
  Communicator ranks(c10::Device(c10::kCPU), new_id(), {RankId(0), RankId(1)}, 0);
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
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    for (std::size_t r = 0; r < 2; ++r) {
      std::vector<sockets::Socket> all(2);
      all[1 - r] = sockets::Socket(ends[r]);
      channels[r] =
          std::make_unique<sockets::SocketChannel>(RankId(r), std::move(all), std::nullopt, watches[r], nullptr);
    }
    channels[0]->start({[this](RankId /*rank*/, const std::string& text) { lost.set_value(text); },
                        [has_failed] { return has_failed; },
                        {}});
    channels[1]->start({});
    const auto communicator = watches[0]->connect(new_id(), {RankId(0), RankId(1)}, 0);
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
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  std::vector<sockets::Socket> all(2);
  all[1] = sockets::Socket(ends[0]);
  const sockets::Socket sender(ends[1]);
  const auto watch = std::make_shared<Watch>(c10::kCPU, kPatience);
  sockets::SocketChannel channel(RankId(0), std::move(all), std::nullopt, watch, nullptr);
  std::promise<std::string> said;
  channel.start({{}, {}, [&](const std::string& text) { said.set_value(text); }});

  const auto send = [&](std::uint32_t kind, std::string text) {
    std::array<std::uint32_t, 2> head{kind, static_cast<std::uint32_t>(text.size())};
    std::array<iovec, 2> parts{iovec{head.data(), sizeof head}, iovec{text.data(), text.size()}};
    EXPECT_EQ(sender.write(parts), sizeof head + text.size());
  };
  send(3, new_id());
  auto description = std::make_shared<wire::Description>();
  wire::TensorForm& form = description->tensors.emplace_back();
  form.is_defined = true;
  form.sizes = {std::int64_t{1} << 50};
  wire::Envelope envelope;
  envelope.tag = {MessageKind::kForward, StageId(0), StageId(1), MicrobatchId(2)};
  envelope.description = description;
  send(1, wire::encode(envelope, {torch::empty(form.sizes, torch::kMeta)}));
  std::future<std::string> text = said.get_future();
  ASSERT_EQ(text.wait_for(kPatience), std::future_status::ready);
  EXPECT_THAT(text.get(), HasSubstr("rank 0 is out of memory: it has no room for 4503599627370496 bytes"));
  EXPECT_TRUE(channel.lines()[1]->wait_until_over(Clock::now() + kPatience));
}

TEST(BesideThread, RestsOnTheDeviceTooAfterAFailure) {
  run([](Rank& rank) {
    if (rank.transport->rank() != RankId(0)) return;
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
}  // namespace nccl
}  // namespace stagecraft
