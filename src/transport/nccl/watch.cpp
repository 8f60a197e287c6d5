#include "watch.h"

#include <algorithm>

namespace stagecraft::nccl {
namespace {

constexpr std::chrono::milliseconds kLook{50};

}  // namespace

Watch::~Watch() { stop(); }

void Watch::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    stopped_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Watch::start(Report report, ReportError report_error) {
  thread_ = std::thread(
      [this, report = std::move(report), report_error = std::move(report_error)] { run(report, report_error); });
}

std::shared_ptr<Communicator> Watch::connect(const std::string& id, std::vector<RankId> members, int place, Use use) {
  const std::lock_guard lock(mutex_);
  for (Known& one : known_) {
    if (one.id != id) continue;
    one.is_free = false;
    return one.communicator;
  }
  auto communicator = std::make_shared<Communicator>(device_, id, std::move(members), place, use);
  known_.push_back({id, communicator});
  if (is_aborted_) communicator->abort();
  return communicator;
}

std::string Watch::id_for(const std::vector<RankId>& members) {
  const std::lock_guard lock(mutex_);
  for (Known& one : known_) {
    if (!one.is_free || one.communicator->members() != members) continue;
    one.is_free = false;
    return one.id;
  }
  return new_id();
}

void Watch::give_back(const std::string& id) {
  const std::lock_guard lock(mutex_);
  for (Known& one : known_) one.is_free = one.is_free || one.id == id;
}

std::vector<std::shared_ptr<Communicator>> Watch::all() {
  std::vector<std::shared_ptr<Communicator>> alive;
  const std::lock_guard lock(mutex_);
  for (const Known& one : known_) alive.push_back(one.communicator);
  return alive;
}

std::vector<std::shared_ptr<Communicator>> Watch::with(RankId rank) {
  std::vector<std::shared_ptr<Communicator>> found = all();
  std::erase_if(found, [&](const auto& one) {
    return std::find(one->members().begin(), one->members().end(), rank) == one->members().end();
  });
  return found;
}

void Watch::run(const Report& report, const ReportError& report_error) {
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, kLook, [&] { return is_over_ || is_aborted_; })) {
    lock.unlock();
    for (const auto& communicator : all()) {
      const std::optional<std::string> what = communicator->overdue(limit_);
      if (const std::optional<std::string> error = communicator->device_error()) {
        report_error(*error, [this] { abort_all(); });
        return;
      }
      if (!what) continue;
      const auto seconds = std::chrono::duration<double>(limit_).count();
      std::string text = "waited " + std::to_string(seconds).substr(0, 5) + " s on the device for " + *what;
      report(communicator->members(), text);
      abort_all();
      return;
    }
    lock.lock();
  }
}

bool Watch::wait_until_idle(Clock::time_point until) {
  while (true) {
    bool is_idle = true;
    for (const auto& communicator : all()) is_idle = communicator->is_idle() && is_idle;
    if (is_idle || Clock::now() >= until) return is_idle;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Watch::abort_all() {
  {
    const std::lock_guard lock(mutex_);
    is_aborted_ = true;
  }
  Communicator::abort(all());
}

}  // namespace stagecraft::nccl
