#include "beside_thread.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/ParallelGuard.h>

#include <utility>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {
namespace {

/// The current exception, with more text.
std::exception_ptr explained(const std::string& where) {
  try {
    throw;
  } catch (const AbortedError& error) {
    return std::make_exception_ptr(AbortedError(error.what() + where, error.peer()));
  } catch (const TimeoutError& error) {
    return std::make_exception_ptr(TimeoutError(error.what() + where, error.peer()));
  } catch (const c10::Error& error) {
    return std::make_exception_ptr(InvalidArgument(error.what_without_backtrace() + where));
  } catch (const std::exception& error) {
    return std::make_exception_ptr(InvalidArgument(error.what() + where));
  } catch (...) {
    return std::make_exception_ptr(Error(kUnknownException + where));
  }
}

}  // namespace

BesideThread::BesideThread(Group& peers, at::Device device) : peers_(peers), device_(device) {
  if (!device_.is_cpu()) {
    lent_.emplace(device_);
    stream_ = lent_->get();
  }
  thread_ = std::thread([this] { work(); });
}

BesideThread::~BesideThread() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

BesideThread::Ticket BesideThread::start(std::string where, std::function<void()> run) {
  Task task{std::move(where), std::move(run), {}};
  if (stream_) task.before.emplace_back(device_.type()).record(current_stream(device_));
  is_used_ = true;
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
  return ++started_;
}

void BesideThread::join_streams() {
  if (stream_) run_after(current_stream(device_), *stream_);
}

void BesideThread::wait(Ticket ticket) {
  std::map<Ticket, c10::Event>::node_type end;
  {
    std::unique_lock lock(mutex_);
    if (done_ < ticket) {
      // If another rank times out on this one, it should look at what this thread waits for.
      peers_.set_resting(true);
      changed_.wait(lock, [&] { return done_ >= ticket; });
      peers_.set_resting(false);
    }
    if (failure_) std::rethrow_exception(failure_);
    end = ends_.extract(ticket);
  }
  if (end) return end.mapped().block(current_stream(device_));
  join_streams();  // it was waited for before, or is of before the last `rest`
}

std::exception_ptr BesideThread::rest() {
  std::exception_ptr failure;
  {
    std::unique_lock lock(mutex_);
    peers_.set_resting(true);
    changed_.wait(lock, [&] { return done_ == started_; });
    peers_.set_resting(false);
    failure = std::exchange(failure_, nullptr);
    ends_.clear();
  }
  // Also after a failure: what the tasks still use on the device is freed next, or used again.
  try {
    if (is_used_) join_streams();
  } catch (const c10::Error&) {
    if (!failure) failure = std::current_exception();
  }
  is_used_ = false;
  return failure;
}

void BesideThread::finish() {
  if (const std::exception_ptr failure = rest()) std::rethrow_exception(failure);
}

void BesideThread::work() {
  const c10::ParallelGuard alone(true);  // one thread: the cores belong to the schedule
  const at::NoGradGuard no_grad;
  const c10::OptionalDeviceGuard device(device_);
  std::optional<c10::StreamGuard> guard;
  if (stream_) guard.emplace(*stream_);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_over_ || !tasks_.empty(); });
    if (is_over_) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    const bool in_vain = failure_ != nullptr;
    lock.unlock();
    std::exception_ptr failure;
    std::optional<c10::Event> end;
    try {
      for (const c10::Event& event : task.before) event.block(*stream_);
      if (!in_vain) task.run();
      if (stream_) end.emplace(device_.type()).record(*stream_);
    } catch (...) {
      failure = explained(" (" + task.where + ")");
    }
    task = {};  // releases tensors before the task counts as done
    lock.lock();
    ++done_;
    if (end) ends_.emplace(done_, std::move(*end));
    if (failure) failure_ = failure;
    changed_.notify_all();
  }
}

}  // namespace stagecraft
