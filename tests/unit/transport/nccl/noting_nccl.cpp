#include "noting_nccl.h"

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "stagecraft/transport/streams.h"
#include "support/patience.h"

namespace stagecraft {
namespace noting_nccl {

std::atomic<std::uint64_t> recorded = 0;
std::atomic<std::uint64_t> ended = kAll;
std::atomic<int> slow_rank = -1;
std::atomic<int> result_of_connecting = 0;
std::atomic<bool> has_failed = false;
std::atomic<bool> is_stuck = false;
std::atomic<int> waiting = 0;
Order blocked;
std::vector<std::uint64_t> awaited;
std::atomic<std::thread::id> observed;

namespace {

struct Event {
  std::uint64_t number;
  c10::StreamId stream;
};

c10::Stream fresh_stream(c10::DeviceType type) {
  static std::atomic<std::int64_t> last = 0;
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(type, -1), ++last);
}

void check_device() { TORCH_CHECK(!has_failed, kDeviceError, "\nCompile with TORCH_USE_CUDA_DSA"); }

template <c10::DeviceType kType>
struct Guard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  [[nodiscard]] c10::Stream getStreamFromGlobalPool(c10::Device /*device*/, bool /*is_urgent*/) const override {
    return fresh_stream(kType);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    check_device();
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = {++recorded, stream.id()};
  }
  void* getStreamNativeHandle(const c10::Stream /*stream*/) const override { return nullptr; }
  void block(void* event, const c10::Stream& stream) const override {
    if (std::this_thread::get_id() == observed.load()) {
      blocked.emplace_back(static_cast<Event*>(event)->stream, stream.id());
      awaited.push_back(static_cast<Event*>(event)->number);
    }
  }
  bool queryEvent(void* event) const override {
    check_device();
    return static_cast<Event*>(event)->number <= ended;
  }
  void synchronizeStream(const c10::Stream& /*stream*/) const override {
    ++waiting;
    while (is_stuck) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --waiting;
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
};

template <c10::DeviceType kType>
const c10::impl::DeviceGuardImplInterface* replaced() {
  return c10::impl::device_guard_impl_registry[static_cast<std::size_t>(kType)].exchange(new Guard<kType>);
}
const std::array kReplaced{replaced<c10::kCPU>(), replaced<c10::kMeta>()};

std::mutex logs_mutex;
std::map<std::string, std::map<int, Log>> logs;  // by id and rank
std::map<nccl::Comm, int> aborts;
std::atomic<int> ids = 0;

int note(nccl::Comm comm, const char* what, std::size_t count) {
  const std::lock_guard lock(logs_mutex);
  static_cast<Log*>(comm)->push_back(what + std::to_string(count));
  return 0;
}

}  // namespace

int times_aborted(const std::string& id, int rank) {
  const std::lock_guard lock(logs_mutex);
  return aborts[&logs[id][rank]];
}

bool eventually(const std::function<bool()>& is_so) {
  const auto until = nccl::Clock::now() + kPatience;
  while (!is_so()) {
    if (nccl::Clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

void FarRank::send(std::uint32_t kind, std::string text) const {
  std::array<std::uint32_t, 2> head{kind, static_cast<std::uint32_t>(text.size())};
  std::array<iovec, 2> parts{iovec{head.data(), sizeof head}, iovec{text.data(), text.size()}};
  EXPECT_EQ(socket.write(parts), sizeof head + text.size());
}

void FarRank::introduce() const { send(3, nccl::new_id()); }

void FarRank::announce(const Tag& tag, const std::vector<std::int64_t>& sizes) const {
  const auto description = std::make_shared<wire::Description>();
  std::vector<at::Tensor> tensors;
  if (!sizes.empty()) {
    wire::TensorForm& form = description->tensors.emplace_back();
    form.is_defined = true;
    form.sizes = sizes;
    tensors.push_back(at::empty(sizes, at::kMeta));
  }
  wire::Envelope envelope;
  envelope.tag = tag;
  envelope.description = description;
  send(1, wire::encode(envelope, tensors));
}

void FarRank::release() const { send(4, {}); }

void FarRank::tell(const Notice& notice) const {
  wire::Envelope envelope;
  envelope.notice = notice.kind;
  envelope.step = notice.step;
  envelope.about = notice.about;
  envelope.header = notice.text;
  send(1, wire::encode(envelope, {}));
}

std::pair<sockets::Socket, sockets::Socket> connected_sockets() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  return {sockets::Socket(ends[0]), sockets::Socket(ends[1])};
}

Rank::Rank(int number, std::vector<sockets::Socket> sockets)
    : watch(std::make_shared<nccl::Watch>(c10::Device(c10::kCPU), kPatience)) {
  const auto ranks = static_cast<int>(sockets.size());
  auto below =
      std::make_unique<sockets::SocketChannel>(RankId(number), std::move(sockets), std::nullopt, watch, nullptr);
  lines = below->lines();
  sockets::SocketChannel& whole = *below;
  auto failing = std::make_unique<FailingChannel>(std::move(below));
  channel = failing.get();
  transport = std::make_unique<Transport>(std::move(failing));
  whole.start({});
  std::vector<int> all;
  for (int r = 0; r < ranks; ++r) all.push_back(r);
  group = group_of(all);
}

Rank::~Rank() {
  group.reset();
  transport.reset();
  for (const auto& line : lines) {
    EXPECT_TRUE(line == nullptr || line->wait_until_over(nccl::Clock::now() + kPatience));
  }
}

std::unique_ptr<Group> Rank::group_of(const std::vector<int>& members) const {
  std::vector<RankId> ids_of_members;
  for (const int member : members) ids_of_members.emplace_back(member);
  return transport->make_group(ids_of_members, kPatience, "the group");
}

std::string Rank::step(const std::function<void()>& work, int lost_message) {
  channel->fail_at(lost_message);
  try {
    work();
  } catch (const std::exception& error) {
    transport->abort({transport->rank(), error.what()});
  }
  channel->fail_at(0);
  return transport->settle(kPatience).value_or(Failure{}).message;
}

std::vector<std::vector<Log>> run(int ranks, const std::function<void(Rank&)>& program) {
  logs.clear();
  std::vector<std::vector<sockets::Socket>> sockets(static_cast<std::size_t>(ranks));
  for (auto& row : sockets) row.resize(sockets.size());
  for (std::size_t a = 0; a < sockets.size(); ++a) {
    for (std::size_t b = a + 1; b < sockets.size(); ++b) {
      std::tie(sockets[a][b], sockets[b][a]) = connected_sockets();
    }
  }
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank rank(r, std::move(sockets[static_cast<std::size_t>(r)]));
      program(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::vector<Log>> all;
  for (const auto& [id, of_ranks] : logs) {
    std::vector<Log>& of_communicator = all.emplace_back();
    for (const auto& [rank, log] : of_ranks) {
      if (log.empty()) continue;
      EXPECT_EQ(log.front(), "sum 1");
      of_communicator.emplace_back(log.begin() + 1, log.end());
    }
  }
  return all;
}

}  // namespace noting_nccl

// In place of the library's, which refuse without CUDA.
bool has_streams(c10::Device /*device*/) { return true; }
c10::Stream unshared_stream(c10::Device device, bool /*is_urgent*/) { return noting_nccl::fresh_stream(device.type()); }
std::string place_of_gpu(c10::Device device) { return device.str(); }

}  // namespace stagecraft

using Comm = stagecraft::nccl::Comm;
using Stream = stagecraft::nccl::Stream;
using stagecraft::noting_nccl::note;

// Found by the names that NCCL's library has.
extern "C" {
int ncclGetVersion(int* version) { return *version = 23000, 0; }
int ncclGetUniqueId(stagecraft::nccl::Id* id) {
  const int number = ++stagecraft::noting_nccl::ids;
  std::memcpy(id->bytes, &number, sizeof number);
  return 0;
}
int ncclCommInitRank(Comm* comm, int /*ranks*/, stagecraft::nccl::Id id, int rank) {
  using namespace stagecraft::noting_nccl;
  if (rank == slow_rank) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::lock_guard lock(logs_mutex);
  *comm = &logs[std::string(id.bytes, sizeof id.bytes)][rank];
  aborts[*comm] = 0;
  return result_of_connecting;
}
int ncclCommAbort(Comm comm) {
  using namespace stagecraft::noting_nccl;
  const std::lock_guard lock(logs_mutex);
  return ++aborts[comm], 0;
}
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
