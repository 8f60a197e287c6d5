#include "search.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

namespace stagecraft::python {

struct Search::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> stopped = false;
  bool ended = false;
  std::optional<PlanProgress> latest;
  std::exception_ptr failure;
  Found found;
};

Search::Search(PlanRequest request, std::vector<Layer> layers) : shared_(std::make_shared<Shared>()) {
  Shared* shared = shared_.get();  // the thread's own pointer keeps it
  shared->found.request = std::move(request);
  shared->found.request.stop = [shared] { return shared->stopped.load(); };
  shared->found.request.progress = [shared](const PlanProgress& progress) {
    const std::scoped_lock lock(shared->mutex);
    shared->latest = progress;
    shared->changed.notify_all();
  };
  std::thread([own = shared_, layers = std::move(layers)] { run(*own, layers); }).detach();
}

Search::~Search() { stop(); }

void Search::run(Shared& shared, const std::vector<Layer>& layers) {
  Found& found = shared.found;
  std::exception_ptr failure;
  try {
    if (layers.empty()) {
      found.result = plan(found.request);
    } else {
      PartitionPlan partition = plan_partition(layers, found.request);
      found.cuts = std::move(partition.cuts);
      found.request.costs = std::move(partition.costs);
      found.result = std::move(partition.plan);
    }
  } catch (...) {
    failure = std::current_exception();
  }
  const std::scoped_lock lock(shared.mutex);
  shared.failure = failure;
  shared.ended = true;
  shared.changed.notify_all();
}

bool Search::wait(double seconds) {
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                            [&] { return shared_->ended || shared_->latest.has_value(); });
  return shared_->ended;
}

void Search::stop() { shared_->stopped = true; }

std::optional<PlanProgress> Search::progress() {
  const std::scoped_lock lock(shared_->mutex);
  return std::exchange(shared_->latest, std::nullopt);
}

Search::Found Search::found() {
  if (shared_->failure) std::rethrow_exception(shared_->failure);
  return std::move(shared_->found);
}

}  // namespace stagecraft::python
