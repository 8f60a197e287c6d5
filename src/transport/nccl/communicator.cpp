#include "communicator.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <condition_variable>
#include <cstring>
#include <thread>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft::nccl {

struct Communicator::Connection {
  Connection(c10::Device on, int count, int own)
      : device(on), ranks(count), place(own), stream(unshared_stream(on, /*is_urgent=*/true)) {}

  c10::Device device;
  int ranks;
  int place;
  c10::Stream stream;
  Id id{};

  std::mutex mutex;
  std::condition_variable changed;
  Comm comm = nullptr;
  std::string failure;
  bool is_over = false;  // connected, or not
  bool is_aborted = false;

  /// The first operation between two ranks connects them further, and waits for the other: better here.
  void warm_up(Comm fresh) const {
    const Library& nccl = need_library();
    const c10::StreamGuard guard(stream);
    const at::Tensor one = at::zeros({ranks}, at::TensorOptions().dtype(at::kInt).device(device));
    if (ranks == 2) {
      check(place == 0 ? nccl.ncclSend(one.data_ptr(), 1, kInt32, 1, fresh, stream.native_handle())
                       : nccl.ncclRecv(one.data_ptr(), 1, kInt32, 0, fresh, stream.native_handle()),
            "the first message", fresh);
    } else {
      check(nccl.ncclAllReduce(one.data_ptr(), one.data_ptr(), 1, kInt32, kSum, fresh, stream.native_handle()),
            "the first sum", fresh);
    }
    stream.synchronize();
  }

  void connect() {
    Comm fresh = nullptr;
    std::string why;
    try {
      const c10::DeviceGuard guard(device);
      check(need_library().ncclCommInitRank(&fresh, ranks, id, place), "ncclCommInitRank");
      warm_up(fresh);
    } catch (const c10::Error& error) {
      why = error.what_without_backtrace();
    } catch (const std::exception& error) {
      why = error.what();
    }
    const std::lock_guard lock(mutex);
    failure = why;
    if (!why.empty() || is_aborted) {
      if (fresh != nullptr) need_library().ncclCommAbort(fresh);
    } else {
      comm = fresh;
    }
    is_over = true;
    changed.notify_all();
  }
};

std::string new_id() {
  Id id{};
  check(need_library().ncclGetUniqueId(&id), "ncclGetUniqueId");
  return {id.bytes, sizeof id.bytes};
}

Communicator::Communicator(c10::Device device, const std::string& id, std::vector<RankId> members, int place)
    : members_(std::move(members)),
      connection_(std::make_shared<Connection>(device, static_cast<int>(members_.size()), place)) {
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
  const std::lock_guard order(issuing_);
  Comm comm = nullptr;
  {
    const std::lock_guard lock(connection_->mutex);
    comm = connection_->comm;
    if (comm == nullptr) return false;
  }
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

/// Under the lock.
void Communicator::drop_ended() {
  while (!in_flight_.empty() && in_flight_.front().end.query()) in_flight_.pop_front();
}

bool Communicator::is_idle() {
  const c10::DeviceGuard guard(connection_->device);
  const std::lock_guard lock(mutex_);
  drop_ended();
  return in_flight_.empty();
}

std::optional<std::string> Communicator::overdue(Clock::duration limit) {
  const c10::DeviceGuard guard(connection_->device);
  const std::lock_guard lock(mutex_);
  drop_ended();
  if (in_flight_.empty()) return std::nullopt;
  Issued& first = in_flight_.front();
  const auto now = Clock::now();
  if (!first.begun && first.begin.query()) first.begun = now;
  if (!first.begun || now - *first.begun < limit) return std::nullopt;
  return first.what;
}

void Communicator::abort() {
  Comm comm = nullptr;
  {
    const std::lock_guard lock(connection_->mutex);
    connection_->is_aborted = true;
    connection_->changed.notify_all();
    comm = std::exchange(connection_->comm, nullptr);
  }
  if (comm == nullptr) return;
  // A thread inside `issue` returns soon. If it does not, it waits for a rank that is gone, and only this ends its
  // wait.
  std::unique_lock order(issuing_, std::defer_lock);
  for (int i = 0; i < 200 && !order.try_lock(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const c10::DeviceGuard guard(connection_->device);
  need_library().ncclCommAbort(comm);
}

void Communicator::abort(const std::vector<std::shared_ptr<Communicator>>& all) {
  std::vector<std::thread> threads;
  for (const auto& one : all) threads.emplace_back([&one] { one->abort(); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace stagecraft::nccl
