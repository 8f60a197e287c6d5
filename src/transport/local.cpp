#include "stagecraft/transport/local.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"
#include "tensor_kinds.h"
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
      const auto keep = [&](const at::Tensor& dense) {
        guard.recordDataPtrOnStream(dense.storage().data_ptr(), current_stream(dense.device()));
      };
      if (is_sparse_of_any_layout(tensor)) {
        for (const at::Tensor& part : parts_of_sparse(tensor)) keep(part);
      } else {
        keep(tensor);
      }
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
  std::vector<Wait> waits;  // of threads that sleep
  // One that took too long: it counts until the rank waits again, so that it is not taken for one that goes on.
  std::optional<Wait> given_up;
  std::atomic<bool> is_resting = false;
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
    settled.notify_all();
    for (Mailbox& mailbox : mailboxes) {
      const std::lock_guard lock(mailbox.mutex);
      mailbox.arrival.notify_all();
    }
  }

  std::mutex mutex;  // of everything below
  std::condition_variable settled;
  std::optional<Failure> failure;
  Clock::time_point failed_at;
  bool has_timed_out = false;      // a wait of this step
  bool is_over = false;            // somebody has given up
  std::optional<Failure> outcome;  // of the last settlement
  std::vector<std::string> farewells = std::vector<std::string>(mailboxes.size());
  std::vector<std::function<std::string()>> activities = std::vector<std::function<std::string()>>(mailboxes.size());
  std::size_t gone_count = 0;
  std::vector<bool> arrived = std::vector<bool>(mailboxes.size(), false);
  std::size_t arrived_count = 0;
  std::uint64_t settlements = 0;

  Standing standing_of(RankId rank) {
    Standing standing;
    std::function<std::string()> activity;
    {
      const std::lock_guard lock(mutex);
      if (arrived[rank.index()]) standing.waits.push_back({.is_settling = true, .from = RankId(-1), .tag = {}});
      activity = activities[rank.index()];
    }
    Mailbox& mailbox = mailboxes[rank.index()];
    {
      const std::lock_guard lock(mailbox.mutex);
      standing.waits.insert(standing.waits.end(), mailbox.waits.begin(), mailbox.waits.end());
      if (mailbox.given_up) standing.waits.push_back(*mailbox.given_up);
    }
    standing.is_resting = mailbox.is_resting;
    if (activity) standing.activity = activity();
    return standing;
  }

  TimeoutError timeout_of(RankId rank, const Wait& wait, Timeout timeout) {
    std::vector<std::optional<Standing>> standings(mailboxes.size());
    return timeout_error(rank, static_cast<int>(mailboxes.size()), wait, timeout, [&](RankId other) -> const Standing& {
      auto& standing = standings[other.index()];
      if (!standing) standing = standing_of(other);
      return *standing;
    });
  }
};

class LocalFabric::End : public Transport {
 public:
  End(Shared& shared, RankId rank, std::optional<at::Device> device)
      : shared_(shared), rank_(rank), device_(device), spin_(spin_time(shared.mailboxes.size())) {}

  [[nodiscard]] RankId rank() const override { return rank_; }
  [[nodiscard]] int ranks() const override { return static_cast<int>(shared_.mailboxes.size()); }

  void send(RankId to, const Tag& tag, Message message) override {
    Mailbox& mailbox = mailbox_of(to);
    for (const at::Tensor& tensor : message.tensors) check_can_travel(tensor);
    {
      const std::lock_guard lock(mailbox.mutex);
      mailbox.entries.push_back({rank_, tag, pack(std::move(message))});
      mailbox.arrivals.fetch_add(1, std::memory_order_release);
    }
    mailbox.arrival.notify_all();  // several threads of the rank may wait, each for its own
  }

  void post_receive(RankId /*from*/, const Tag& /*tag*/) override {}  // it travels anyway

  Message receive(RankId from, const Tag& tag, Timeout timeout, const Purpose* purpose) override {
    (void)mailbox_of(from);
    Mailbox& mailbox = mailbox_of(rank_);
    const auto begin = Clock::now();
    std::unique_lock lock(mailbox.mutex);
    mailbox.given_up.reset();
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
      const Wait wait{false, from, tag, purpose, std::this_thread::get_id() == main_thread_};
      mailbox.waits.push_back(wait);
      const bool woken = mailbox.arrival.wait_until(
          lock, begin + timeout, [&] { return mailbox.arrivals != seen || shared_.aborted || shared_.is_gone(from); });
      if (woken) {
        forget(mailbox.waits, wait);
        continue;
      }
      lock.unlock();
      const TimeoutError error = shared_.timeout_of(rank_, wait, timeout);
      lock.lock();
      forget(mailbox.waits, wait);
      mailbox.given_up = wait;
      lock.unlock();
      const std::lock_guard step(shared_.mutex);
      if (shared_.failure) throw AbortedError(shared_.failure->message, shared_.failure->rank);
      shared_.has_timed_out = true;
      throw error;
    }
  }

  void abort(const Failure& failure) override {
    {
      const std::lock_guard lock(shared_.mutex);
      fail(failure);
    }
    shared_.wake_all();
  }

  void give_up(const Failure& failure) override {
    {
      const std::lock_guard lock(shared_.mutex);
      fail(failure);
      shared_.is_over = true;
    }
    shared_.wake_all();
  }

  [[nodiscard]] std::optional<Failure> over() const override {
    const std::lock_guard lock(shared_.mutex);
    return shared_.is_over ? shared_.failure : std::nullopt;
  }

  void set_resting(bool resting) override { mailbox_of(rank_).is_resting = resting; }

  std::optional<Failure> settle(Timeout timeout) override {
    main_thread_ = std::this_thread::get_id();
    give_up_wait(std::nullopt);
    std::unique_lock lock(shared_.mutex);
    throw_if_hopeless();
    shared_.arrived[rank_.index()] = true;
    if (++shared_.arrived_count == shared_.mailboxes.size()) {
      finish_settlement();
      shared_.settled.notify_all();
      return shared_.outcome;
    }
    const std::uint64_t before = shared_.settlements;
    const auto begin = Clock::now();
    const auto deadline = [&]() -> Clock::time_point {
      if (!shared_.failure || !shared_.has_timed_out) return begin + timeout;
      return std::min<Clock::time_point>(begin + timeout, std::max(begin, shared_.failed_at) + kPatienceAfterTimeout);
    };
    const auto is_settled = [&] { return shared_.settlements != before; };
    while (!is_settled() && !is_hopeless() && Clock::now() < deadline()) shared_.settled.wait_until(lock, deadline());
    if (is_settled()) return shared_.outcome;
    const auto leave = [&] {
      --shared_.arrived_count;
      shared_.arrived[rank_.index()] = false;
      throw_if_hopeless();
      if (shared_.failure) throw AbortedError(shared_.failure->message, shared_.failure->rank);
    };
    if (is_hopeless() || shared_.failure) leave();
    lock.unlock();
    const Wait wait{.is_settling = true, .from = RankId(-1), .tag = {}};
    const TimeoutError error = shared_.timeout_of(rank_, wait, timeout);
    give_up_wait(wait);
    lock.lock();
    if (is_settled()) return shared_.outcome;
    leave();
    throw error;
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

  void give_up_wait(const std::optional<Wait>& wait) const {
    Mailbox& mailbox = mailbox_of(rank_);
    const std::lock_guard lock(mailbox.mutex);
    mailbox.given_up = wait;
  }

  static void forget(std::vector<Wait>& waits, const Wait& wait) {
    const auto own = std::find_if(waits.begin(), waits.end(),
                                  [&](const Wait& other) { return other.from == wait.from && other.tag == wait.tag; });
    std::swap(*own, waits.back());
    waits.pop_back();
  }

  /// The first failure counts. Under the lock.
  void fail(const Failure& failure) {
    if (!shared_.failure) {
      shared_.failure = failure;
      shared_.failed_at = Clock::now();
    }
    shared_.aborted = true;
  }

  /// All ranks are here, so none sends or receives.
  void finish_settlement() {
    shared_.outcome = std::move(shared_.failure);
    shared_.failure.reset();
    shared_.has_timed_out = false;
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

  [[nodiscard]] bool is_hopeless() const { return shared_.is_over || shared_.gone_count > 0; }
  /// A rank that is gone ends no step. Under the lock.
  void throw_if_hopeless() const {
    if (shared_.is_over) throw AbortedError(shared_.failure->message, shared_.failure->rank);
    for (std::size_t r = 0; shared_.gone_count > 0 && r < shared_.gone.size(); ++r) {
      if (shared_.gone[r]) throw AbortedError(shared_.farewells[r], RankId(r));
    }
  }

  /// Some rank failed, or the one waited for is gone.
  [[noreturn]] void throw_ended(RankId from) const {
    const std::lock_guard lock(shared_.mutex);
    if (shared_.failure) throw AbortedError(shared_.failure->message, shared_.failure->rank);
    throw AbortedError(shared_.farewells[from.index()], from);
  }

  Shared& shared_;
  RankId rank_;
  std::optional<at::Device> device_;
  Clock::duration spin_;
  std::atomic<std::thread::id> main_thread_ = std::this_thread::get_id();  // that settles steps
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
    if (!shared_->gone[rank.index()].exchange(true)) ++shared_->gone_count;
  }
  shared_->wake_all();
}

std::unique_ptr<Transport> LocalFabric::connect(RankId rank, std::optional<at::Device> device,
                                                std::function<std::string()> activity) {
  if (rank.value < 0 || rank.index() >= shared_->mailboxes.size()) {
    throw InvalidArgument("there is no rank " + std::to_string(rank.value) + ": the world has ranks 0 to " +
                          std::to_string(shared_->mailboxes.size() - 1));
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->activities[rank.index()] = std::move(activity);
  }
  return std::make_unique<End>(*shared_, rank, device);
}

}  // namespace stagecraft
