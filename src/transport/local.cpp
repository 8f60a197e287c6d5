#include "stagecraft/transport/local.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"
#include "waiting.h"

namespace stagecraft {
namespace {

using Clock = std::chrono::steady_clock;

/// What has been sent and not received. On a device with streams, `written` says when the tensors are there.
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
  at::Tensor moved = tensor.detach().to(device, /*non_blocking=*/true);
  return moved.set_requires_grad(tensor.requires_grad());
}

Message unpack(Parcel parcel, const std::optional<c10::Device>& home) {
  if (parcel.devices.empty() && !home) return std::move(parcel.message);
  for (std::size_t i = 0; i < parcel.devices.size(); ++i) parcel.written[i].block(current_stream(parcel.devices[i]));
  for (at::Tensor& tensor : parcel.message.tensors) {
    if (!tensor.defined() || tensor.is_meta()) continue;
    if (!tensor.is_cpu()) {
      // The sender's allocator must not give the memory away before this stream has read it.
      const c10::impl::VirtualGuardImpl guard(tensor.device().type());
      guard.recordDataPtrOnStream(tensor.storage().data_ptr(), current_stream(tensor.device()));
    }
    if (home && tensor.device() != *home) tensor = moved_to(tensor, *home);
  }
  return std::move(parcel.message);
}

/// What has arrived at one rank. Few messages are in flight at a time: a list is faster than a map.
struct Mailbox {
  struct Entry {
    RankId from;
    Tag tag;
    Parcel parcel;
  };
  std::mutex mutex;
  std::condition_variable arrival;
  std::vector<Entry> entries;
  std::atomic<std::uint64_t> arrivals = 0;  // counts; read without the lock by a receiver about to sleep

  std::optional<Parcel> take(RankId from, const Tag& tag) {
    for (Entry& entry : entries) {
      if (entry.from != from || entry.tag != tag) continue;
      Parcel parcel = std::move(entry.parcel);
      std::swap(entry, entries.back());
      entries.pop_back();
      return parcel;
    }
    return std::nullopt;
  }
};

}  // namespace

struct LocalFabric::Shared {
  explicit Shared(int ranks) : mailboxes(static_cast<std::size_t>(ranks)) {}

  std::vector<Mailbox> mailboxes;
  std::atomic<bool> aborted = false;
  std::atomic<std::uint64_t> failed_steps = 0;
  std::vector<std::atomic<bool>> gone = std::vector<std::atomic<bool>>(mailboxes.size());

  [[nodiscard]] bool is_gone(RankId rank) const { return gone[rank.index()]; }
  /// Or a waiting thread between its check and its sleep would miss the news.
  void wake_all() {
    for (Mailbox& mailbox : mailboxes) {
      const std::lock_guard lock(mailbox.mutex);
      mailbox.arrival.notify_all();
    }
  }

  std::mutex mutex;  // of everything below
  std::condition_variable settled;
  std::optional<Failure> failure;
  std::optional<Failure> outcome;  // of the last settlement
  std::vector<std::string> farewells = std::vector<std::string>(mailboxes.size());
  std::vector<bool> arrived = std::vector<bool>(mailboxes.size(), false);
  std::size_t arrived_count = 0;
  std::uint64_t settlements = 0;
};

class LocalFabric::End : public Transport {
 public:
  End(Shared& shared, RankId rank, std::optional<at::Device> device)
      : shared_(shared), rank_(rank), device_(device), spin_(spin_time(shared.mailboxes.size())) {}

  [[nodiscard]] RankId rank() const override { return rank_; }
  [[nodiscard]] int ranks() const override { return static_cast<int>(shared_.mailboxes.size()); }

  void send(RankId to, const Tag& tag, Message message) override {
    Mailbox& mailbox = mailbox_of(to);
    {
      const std::lock_guard lock(mailbox.mutex);
      mailbox.entries.push_back({rank_, tag, pack(std::move(message))});
      mailbox.arrivals.fetch_add(1, std::memory_order_release);
    }
    mailbox.arrival.notify_all();  // several threads of the rank may wait, each for its own
  }

  void post_receive(RankId /*from*/, const Tag& /*tag*/) override {}  // it travels anyway

  Message receive(RankId from, const Tag& tag, Timeout timeout) override {
    Mailbox& mailbox = mailbox_of(rank_);
    const auto begin = Clock::now();
    std::unique_lock lock(mailbox.mutex);
    while (true) {
      if (auto parcel = mailbox.take(from, tag)) {
        lock.unlock();
        return unpack(std::move(*parcel), device_);
      }
      if (shared_.aborted || shared_.is_gone(from)) {
        lock.unlock();
        throw_ended(from);
      }
      const std::uint64_t seen = mailbox.arrivals;
      // A message often comes within microseconds, sooner than a sleeping thread wakes up.
      if (Clock::now() - begin < spin_) {
        lock.unlock();
        while (mailbox.arrivals == seen && !shared_.aborted && !shared_.is_gone(from) && Clock::now() - begin < spin_)
          std::this_thread::yield();
        lock.lock();
        continue;
      }
      const bool woken = mailbox.arrival.wait_until(
          lock, begin + timeout, [&] { return mailbox.arrivals != seen || shared_.aborted || shared_.is_gone(from); });
      if (!woken) throw message_timeout(rank_, from, tag, timeout);
    }
  }

  void abort(const Failure& failure) override {
    {
      const std::lock_guard lock(shared_.mutex);
      if (!shared_.failure) shared_.failure = failure;
      shared_.aborted = true;
    }
    shared_.wake_all();
  }

  std::optional<Failure> settle(Timeout timeout) override {
    std::unique_lock lock(shared_.mutex);
    throw_if_any_gone();
    shared_.arrived[rank_.index()] = true;
    if (++shared_.arrived_count == shared_.mailboxes.size()) {
      finish_settlement();
      shared_.settled.notify_all();
      return shared_.outcome;
    }
    const std::uint64_t before = shared_.settlements;
    const auto is_settled = [&] { return shared_.settlements != before; };
    const auto is_hopeless = [&] {
      return std::any_of(shared_.gone.begin(), shared_.gone.end(), [](const auto& gone) { return gone.load(); });
    };
    shared_.settled.wait_for(lock, timeout, [&] { return is_settled() || is_hopeless(); });
    if (is_settled()) return shared_.outcome;
    --shared_.arrived_count;
    shared_.arrived[rank_.index()] = false;
    throw_if_any_gone();
    throw_missing(timeout);
  }

  [[nodiscard]] std::uint64_t failed_steps() const override { return shared_.failed_steps; }

 private:
  static Clock::duration spin_time(std::size_t ranks) {
    return ranks <= std::thread::hardware_concurrency() ? std::chrono::microseconds(50) : std::chrono::microseconds(0);
  }

  [[nodiscard]] Mailbox& mailbox_of(RankId rank) const {
    if (rank.index() >= shared_.mailboxes.size()) {
      throw no_such_rank(rank, ranks());
    }
    return shared_.mailboxes[rank.index()];
  }

  /// All ranks are here, so none sends or receives.
  void finish_settlement() {
    shared_.outcome = std::move(shared_.failure);
    shared_.failure.reset();
    if (shared_.outcome) {
      ++shared_.failed_steps;
      for (Mailbox& mailbox : shared_.mailboxes) {
        const std::lock_guard lock(mailbox.mutex);
        mailbox.entries.clear();
      }
    }
    shared_.aborted = false;
    shared_.arrived.assign(shared_.arrived.size(), false);
    shared_.arrived_count = 0;
    ++shared_.settlements;
  }

  /// A rank that is gone ends no step. Under the lock.
  void throw_if_any_gone() const {
    for (std::size_t r = 0; r < shared_.gone.size(); ++r) {
      if (shared_.gone[r]) throw AbortedError(shared_.farewells[r], RankId(r));
    }
  }

  /// Some rank failed, or the one waited for is gone.
  [[noreturn]] void throw_ended(RankId from) const {
    const std::lock_guard lock(shared_.mutex);
    if (shared_.failure) throw AbortedError(shared_.failure->message, shared_.failure->rank);
    throw AbortedError(shared_.farewells[from.index()], from);
  }

  [[noreturn]] void throw_missing(Timeout timeout) const {
    std::vector<RankId> missing;
    for (std::size_t r = 0; r < shared_.arrived.size(); ++r) {
      if (!shared_.arrived[r] && RankId(r) != rank_) missing.emplace_back(r);
    }
    throw step_end_timeout(rank_, missing, timeout);
  }

  Shared& shared_;
  RankId rank_;
  std::optional<at::Device> device_;
  Clock::duration spin_;
};

LocalFabric::LocalFabric(int ranks) {
  if (ranks < 1) throw InvalidArgument("a world has at least 1 rank, got " + std::to_string(ranks));
  shared_ = std::make_unique<Shared>(ranks);
}
LocalFabric::~LocalFabric() = default;

void LocalFabric::depart(RankId rank, const std::string& message) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->farewells[rank.index()] = message;
    shared_->gone[rank.index()] = true;
  }
  shared_->settled.notify_all();
  shared_->wake_all();
}

std::unique_ptr<Transport> LocalFabric::connect(RankId rank, std::optional<at::Device> device) {
  if (rank.value < 0 || rank.index() >= shared_->mailboxes.size()) {
    throw InvalidArgument("there is no rank " + std::to_string(rank.value) + ": the world has ranks 0 to " +
                          std::to_string(shared_->mailboxes.size() - 1));
  }
  return std::make_unique<End>(*shared_, rank, device);
}

}  // namespace stagecraft
