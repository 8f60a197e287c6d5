#include "communicator.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <condition_variable>
#include <cstring>
#include <thread>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"
#include "words_of.h"

namespace stagecraft::nccl {

std::optional<std::string> error_of(c10::Device device) {
  try {
    const c10::DeviceGuard guard(device);
    c10::Event(device.type()).record(current_stream(device));
  } catch (const c10::Error& error) {
    return words_of(error);
  }
  return std::nullopt;
}

struct Communicator::Connection {
  Connection(c10::Device on, int count, int own, Use what_for)
      : device(on), ranks(count), place(own), use(what_for), stream(unshared_stream(on, /*is_urgent=*/true)) {}

  c10::Device device;
  int ranks;
  int place;
  Use use;
  c10::Stream stream;
  Id id{};

  std::mutex issuing;  // held inside NCCL's functions that issue operations; taken before the other one

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  /// Connected, and not yet warmed up. Whoever takes it away from here, or `comm`, aborts it or makes it `comm`.
  Comm warming = nullptr;
  Comm comm = nullptr;
  std::string failure;
  bool is_over = false;  // connected, or not
  bool is_aborted = false;

  /// The first operation of its kind connects the ranks further, and waits for the others: better here. If one of them
  /// dies, only an abort ends it.
  void warm_up() {
    const Library& nccl = need_library();
    const c10::StreamGuard guard(stream);
    const at::Tensor one = at::zeros({ranks}, at::TensorOptions().dtype(at::kInt).device(device));
    {
      const std::lock_guard order(issuing);
      const Comm fresh = still_warming();
      if (fresh == nullptr) return;
      issue_first(nccl, fresh, one);
    }
    stream.synchronize();
  }

  Comm still_warming() {
    const std::lock_guard lock(mutex);
    return is_aborted ? nullptr : warming;
  }

  void issue_first(const Library& nccl, Comm fresh, const at::Tensor& one) const {
    if (use == Use::kMessages) {
      check(place == 0 ? nccl.ncclSend(one.data_ptr(), 1, kInt32, 1, fresh, stream.native_handle())
                       : nccl.ncclRecv(one.data_ptr(), 1, kInt32, 0, fresh, stream.native_handle()),
            "the first message", fresh);
    } else {
      check(nccl.ncclAllReduce(one.data_ptr(), one.data_ptr(), 1, kInt32, kSum, fresh, stream.native_handle()),
            "the first sum", fresh);
    }
  }

  void connect() {
    std::string why;
    try {
      const c10::DeviceGuard guard(device);
      Comm fresh = nullptr;
      const int result = need_library().ncclCommInitRank(&fresh, ranks, id, place);
      {
        const std::lock_guard lock(mutex);
        warming = fresh;
      }
      check(result, "ncclCommInitRank");
      warm_up();
    } catch (const c10::Error& error) {
      why = words_of(error);
    } catch (const std::exception& error) {
      why = error_of(device).value_or(error.what());  // NCCL says no more than "unhandled cuda error"
    }
    Comm unusable = nullptr;
    {
      const std::lock_guard lock(mutex);
      failure = why;
      const bool is_usable = why.empty() && !is_aborted;
      (is_usable ? comm : unusable) = std::exchange(warming, nullptr);  // null if `abort` has it
      is_over = true;
      changed.notify_all();
    }
    if (unusable != nullptr) end(unusable);
  }

  /// What can be issued to; null: nothing, because it is not connected yet, or aborted.
  Comm usable() {
    const std::lock_guard lock(mutex);
    return comm;
  }

  void end(Comm one) const {
    try {
      const c10::DeviceGuard guard(device);
      need_library().ncclCommAbort(one);
    } catch (const c10::Error&) {  // of the guard: the device has failed, but threads may still wait inside NCCL
      need_library().ncclCommAbort(one);
    }
  }
};

std::string new_id() {
  Id id{};
  check(need_library().ncclGetUniqueId(&id), "ncclGetUniqueId");
  return {id.bytes, sizeof id.bytes};
}

void prepare(c10::Device device) {
  const c10::DeviceGuard guard(device);
  Id id{};
  check(need_library().ncclGetUniqueId(&id), "ncclGetUniqueId");
  Comm alone = nullptr;
  check(need_library().ncclCommInitRank(&alone, 1, id, 0), "ncclCommInitRank");
  check(need_library().ncclCommAbort(alone), "ncclCommAbort");
}

Communicator::Communicator(c10::Device device, const std::string& id, std::vector<RankId> members, int place, Use use)
    : members_(std::move(members)),
      connection_(std::make_shared<Connection>(device, static_cast<int>(members_.size()), place, use)) {
  if (id.size() != sizeof(Id)) throw InternalError("an id of NCCL has " + std::to_string(id.size()) + " bytes");
  std::memcpy(connection_->id.bytes, id.data(), id.size());
  std::thread([connection = connection_] { connection->connect(); }).detach();
}

std::string Communicator::id() const { return {connection_->id.bytes, sizeof connection_->id.bytes}; }
const c10::Stream& Communicator::stream() const { return connection_->stream; }

bool Communicator::wait_until_connected(Clock::time_point until) {
  std::unique_lock lock(connection_->mutex);
  connection_->changed.wait_until(lock, until, [&] { return connection_->is_over || connection_->is_aborted; });
  if (connection_->is_aborted) return true;
  if (connection_->is_over && !connection_->failure.empty()) {
    throw TransportError(connection_->failure, members_[members_.size() == 2 && connection_->place == 0 ? 1 : 0]);
  }
  return connection_->is_over;
}

bool Communicator::issue(std::string what, const Operation& operation) {
  if (connection_->usable() == nullptr) return false;  // at once, also when a thread is stuck inside NCCL
  const std::lock_guard order(connection_->issuing);
  const Comm comm = connection_->usable();
  if (comm == nullptr) return false;
  const c10::DeviceGuard guard(connection_->device);
  c10::Event begin(connection_->device.type());
  begin.record(stream());
  operation(need_library(), comm, stream().native_handle());
  c10::Event end(connection_->device.type());
  end.record(stream());
  const std::lock_guard lock(mutex_);
  in_flight_.push_back({std::move(what), std::move(begin), std::move(end)});
  while (in_flight_.size() > 1 && in_flight_.front().end.query()) in_flight_.pop_front();
  return true;
}

bool Communicator::take_part(std::string what, const std::string& label, const Operation& operation) {
  const c10::Stream current = current_stream(connection_->device);
  run_after(stream(), current);
  if (!issue(std::move(what), operation)) return false;
  run_after(current, stream());
  progress_ = {progress_.issued + 1, label};
  expect_nothing();
  return true;
}

/// Under the lock. Returns what is first among those that have not ended; null: nothing is on its way.
Communicator::Issued* Communicator::first_in_flight() {
  try {
    const c10::DeviceGuard guard(connection_->device);
    while (!in_flight_.empty() && in_flight_.front().end.query()) in_flight_.pop_front();
    if (in_flight_.empty()) return nullptr;
    Issued& first = in_flight_.front();
    if (!first.begun && first.begin.query()) first.begun = Clock::now();
    return &first;
  } catch (const c10::Error& error) {
    device_error_ = words_of(error);
    in_flight_.clear();
    return nullptr;
  }
}

bool Communicator::is_idle() {
  const std::lock_guard lock(mutex_);
  return first_in_flight() == nullptr;
}

std::optional<std::string> Communicator::overdue(Clock::duration limit) {
  const std::lock_guard lock(mutex_);
  const Issued* first = first_in_flight();
  if (first == nullptr || !first->begun || Clock::now() - *first->begun < limit) return std::nullopt;
  return first->what;
}

std::optional<std::string> Communicator::device_error() {
  const std::lock_guard lock(mutex_);
  return device_error_;
}

void Communicator::abort() {
  Comm comm = nullptr;
  {
    const std::lock_guard lock(connection_->mutex);
    connection_->is_aborted = true;
    connection_->changed.notify_all();
    Comm& own = connection_->comm != nullptr ? connection_->comm : connection_->warming;
    comm = std::exchange(own, nullptr);
  }
  if (comm == nullptr) return;
  // A thread that issues something returns soon. If it does not, it waits for a rank that is gone, and only this ends
  // its wait.
  std::unique_lock order(connection_->issuing, std::defer_lock);
  for (int i = 0; i < 200 && !order.try_lock(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  connection_->end(comm);
}

void Communicator::abort(const std::vector<std::shared_ptr<Communicator>>& all) {
  std::vector<std::thread> threads;
  for (const auto& one : all) threads.emplace_back([&one] { one->abort(); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace stagecraft::nccl
