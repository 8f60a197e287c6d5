#pragma once

#include <atomic>
#include <thread>

#include "dispatch.h"

namespace stagecraft::detail {

/// A parallel loop with one dispatcher per thread. The work must not depend on which thread does it.
class Workers {
 public:
  Workers(const Problem& problem, int threads) {
    for (int i = 0; i < std::max(1, threads); ++i) dispatchers_.emplace_back(problem);
  }

  /// Calls `work(dispatcher, i)` for every i below `count`, in any order and from any thread.
  template <typename Work>
  void for_each(std::size_t count, const Work& work) {
    std::atomic<std::size_t> next = 0;
    const auto run = [&](Dispatcher& dispatcher) {
      for (std::size_t i = next++; i < count; i = next++) work(dispatcher, i);
    };
    std::vector<std::thread> helpers;
    for (std::size_t i = 1; i < std::min(dispatchers_.size(), count); ++i) {
      helpers.emplace_back([&run, &dispatcher = dispatchers_[i]] { run(dispatcher); });
    }
    run(dispatchers_.front());
    for (std::thread& helper : helpers) helper.join();
  }

 private:
  std::vector<Dispatcher> dispatchers_;
};

}  // namespace stagecraft::detail
