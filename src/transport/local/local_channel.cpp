#include "stagecraft/transport/local.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"
#include "tensor_kinds.h"

namespace stagecraft {
namespace {

/// A message in flight. On a device with streams, its tensors may be read after the events `written`.
struct Parcel {
  Message message;
  std::vector<c10::Event> written;
  std::vector<c10::Device> devices;  // of the events
};

Parcel pack(Message message) {
  Parcel parcel{std::move(message), {}, {}};
  for (const at::Tensor& tensor : parcel.message.tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) continue;
    if (std::find(parcel.devices.begin(), parcel.devices.end(), tensor.device()) != parcel.devices.end()) continue;
    parcel.devices.push_back(tensor.device());
    parcel.written.emplace_back(tensor.device().type());
    parcel.written.back().record(current_stream(tensor.device()));
  }
  return parcel;
}

at::Tensor moved_to(const at::Tensor& tensor, c10::Device device) {
  // What arrives on the host is read at once.
  at::Tensor moved = tensor.detach().to(device, /*non_blocking=*/!device.is_cpu());
  return moved.set_requires_grad(tensor.requires_grad());
}

/// The streams on which one rank reads the memory of devices other than its own. The default stream of such a device
/// would make all ranks that read from it wait for each other.
class ForeignStreams {
 public:
  c10::Stream on(c10::Device device) {
    const std::lock_guard lock(mutex_);
    const auto known = std::find_if(streams_.begin(), streams_.end(),
                                    [&](const auto& stream) { return stream->get().device() == device; });
    return (known != streams_.end() ? *known : streams_.emplace_back(std::make_unique<LentStream>(device)))->get();
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<LentStream>> streams_;
};

/// `stays_on_host`: what is on the host is not moved to `home`.
Message unpack(Parcel parcel, const std::optional<c10::Device>& home, bool stays_on_host, ForeignStreams& foreign) {
  if (parcel.devices.empty() && !home) return std::move(parcel.message);
  const auto stream_on = [&](c10::Device device) {
    return home && device != *home ? foreign.on(device) : current_stream(device);
  };
  for (std::size_t i = 0; i < parcel.devices.size(); ++i) {
    parcel.written[i].block(stream_on(parcel.devices[i]));
    if (!home || parcel.devices[i] == *home) continue;
    // An empty tensor tells that something was read: its copy would make nobody wait.
    if (home->is_cpu()) {
      parcel.written[i].synchronize();
    } else {
      parcel.written[i].block(current_stream(*home));
    }
  }
  for (at::Tensor& tensor : parcel.message.tensors) {
    if (!tensor.defined() || tensor.is_meta()) continue;
    std::optional<c10::StreamGuard> reading;
    if (!tensor.is_cpu()) {
      reading.emplace(stream_on(tensor.device()));
      // The sender's allocator must not give the memory away before this stream has read it.
      const c10::impl::VirtualGuardImpl guard(tensor.device().type());
      const auto keep = [&](const at::Tensor& dense) {
        guard.recordDataPtrOnStream(dense.storage().data_ptr(), current_stream(dense.device()));
      };
      if (is_sparse_of_any_layout(tensor)) {
        for (const at::Tensor& part : parts_of_sparse(tensor)) keep(part);
      } else {
        keep(tensor);
      }
    }
    if (home && tensor.device() != *home && !(stays_on_host && tensor.is_cpu())) tensor = moved_to(tensor, *home);
  }
  return std::move(parcel.message);
}

/// What has arrived at one rank. Few messages are in flight at a time: a list is faster than a map.
struct Mailbox {
  struct Entry {
    RankId from;
    Tag tag;
    std::uint64_t step;
    Parcel parcel;
  };
  std::mutex mutex;
  std::condition_variable arrival;
  std::vector<Entry> entries;           // in the order of arrival
  std::uint64_t first_step = 0;         // messages of earlier steps are dropped
  std::atomic<std::uint64_t> news = 0;  // read without the lock by a thread about to sleep
  // The listener is called without the lock; notices that arrive before it is set wait in `early`.
  std::shared_ptr<const Channel::Listener> listener;
  std::vector<std::pair<RankId, Notice>> early;

  /// Called with the lock held; otherwise a thread that has read `news` and is about to sleep would miss it.
  void ring() {
    news.fetch_add(1, std::memory_order_release);
    arrival.notify_all();  // several threads of the rank may wait, each for its own
  }
  std::optional<Entry> take(RankId from, const Tag& tag) {
    const auto first = std::find_if(entries.begin(), entries.end(),
                                    [&](const Entry& entry) { return entry.from == from && entry.tag == tag; });
    if (first == entries.end()) return std::nullopt;
    Entry entry = std::move(*first);
    entries.erase(first);
    return entry;
  }
};

}  // namespace

struct LocalFabric::Shared {
  explicit Shared(int ranks) : mailboxes(static_cast<std::size_t>(ranks)) {}

  /// Runs in the thread of the sender.
  void deliver(RankId from, RankId to, const Notice& notice) {
    Mailbox& mailbox = mailboxes[to.index()];
    std::shared_ptr<const Channel::Listener> listener;
    {
      const std::lock_guard lock(mailbox.mutex);
      listener = mailbox.listener;
      if (!listener) mailbox.early.emplace_back(from, notice);
    }
    if (!listener) return;
    const std::optional<Notice> answer = (*listener)(from, notice);
    {
      const std::lock_guard lock(mailbox.mutex);
      mailbox.ring();
    }
    if (answer) deliver(to, from, *answer);
  }

  std::vector<Mailbox> mailboxes;
};

class LocalFabric::End : public Channel {
 public:
  End(std::shared_ptr<Shared> shared, RankId rank, std::optional<at::Device> device)
      : shared_(std::move(shared)),
        rank_(rank),
        device_(device ? std::optional(with_index(*device)) : std::nullopt),
        own_(shared_->mailboxes[rank.index()]) {
    const bool has_core = shared_->mailboxes.size() <= std::thread::hardware_concurrency();
    if (has_core) spin_ = std::chrono::microseconds(50);
  }

  [[nodiscard]] RankId rank() const override { return rank_; }
  [[nodiscard]] int ranks() const override { return static_cast<int>(shared_->mailboxes.size()); }
  [[nodiscard]] CommModel model() const override { return CommModel::kTagged; }

  void send(RankId to, const Tag& tag, Message message, std::uint64_t step) override {
    Parcel parcel = pack(std::move(message));
    Mailbox& mailbox = shared_->mailboxes[to.index()];
    const std::lock_guard lock(mailbox.mutex);
    if (step < mailbox.first_step) return;
    mailbox.entries.push_back({rank_, tag, step, std::move(parcel)});
    mailbox.ring();
  }

  void post(RankId /*from*/, const Tag& /*tag*/) override {}  // the message is delivered anyway

  std::optional<Message> take(RankId from, const Tag& tag) override {
    std::unique_lock lock(own_.mutex);
    std::optional<Mailbox::Entry> entry = own_.take(from, tag);
    lock.unlock();
    if (!entry) return std::nullopt;
    return unpack(std::move(entry->parcel), device_, entry->step == kNoStep, foreign_);
  }

  bool is_coming(RankId /*from*/, const Tag& /*tag*/) override { return false; }  // messages arrive whole

  void end_step(std::uint64_t next, bool failed) override {
    if (!failed) return;
    std::vector<Mailbox::Entry> dropped;  // destroyed after the lock is released
    const std::lock_guard lock(own_.mutex);
    own_.first_step = next;
    const auto old = std::stable_partition(own_.entries.begin(), own_.entries.end(),
                                           [&](const Mailbox::Entry& entry) { return entry.step >= next; });
    dropped.assign(std::make_move_iterator(old), std::make_move_iterator(own_.entries.end()));
    own_.entries.erase(old, own_.entries.end());
  }

  void listen(Listener listener) override {
    std::vector<std::pair<RankId, Notice>> early;
    {
      const std::lock_guard lock(own_.mutex);
      own_.listener = std::make_shared<const Listener>(std::move(listener));
      early.swap(own_.early);
    }
    for (const auto& [from, notice] : early) shared_->deliver(from, rank_, notice);
  }

  void tell(RankId to, const Notice& notice) override { shared_->deliver(rank_, to, notice); }

  std::uint64_t news() override { return own_.news.load(std::memory_order_acquire); }

  void wait_for_news(std::uint64_t seen, Clock::time_point since, Clock::time_point until) override {
    // A message often comes within microseconds, sooner than a sleeping thread wakes up.
    while (Clock::now() - since < spin_) {
      if (news() != seen) return;
      std::this_thread::yield();
    }
    std::unique_lock lock(own_.mutex);
    own_.arrival.wait_until(lock, until, [&] { return news() != seen; });
  }

  void wake() override {
    const std::lock_guard lock(own_.mutex);
    own_.ring();
  }

 private:
  std::shared_ptr<Shared> shared_;
  RankId rank_;
  std::optional<at::Device> device_;
  ForeignStreams foreign_;
  Mailbox& own_;
  Clock::duration spin_{0};
};

LocalFabric::LocalFabric(int ranks) {
  if (ranks < 1) throw InvalidArgument("a world has at least 1 rank, got " + std::to_string(ranks));
  shared_ = std::make_shared<Shared>(ranks);
}
LocalFabric::~LocalFabric() = default;

std::unique_ptr<Channel> LocalFabric::channel(RankId rank, std::optional<at::Device> device) {
  const std::size_t ranks = shared_->mailboxes.size();
  if (rank.value < 0 || rank.index() >= ranks) {
    throw InvalidArgument("there is no rank " + std::to_string(rank.value) + ": the world has ranks 0 to " +
                          std::to_string(ranks - 1));
  }
  return std::make_unique<End>(shared_, rank, device);
}

std::unique_ptr<Transport> LocalFabric::connect(RankId rank, std::optional<at::Device> device,
                                                std::function<std::string()> activity) {
  return std::make_unique<Transport>(channel(rank, device), std::move(activity));
}

}  // namespace stagecraft
