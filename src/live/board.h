#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace stagecraft::detail {

/// The newest text of each name, which any number of readers wait for. A writer never waits for a reader: texts are
/// shared, and the lock is held only to swap pointers.
class Board {
 public:
  void put(const std::string& name, std::string text) {
    auto shared = std::make_shared<const std::string>(std::move(text));
    {
      const std::lock_guard lock(mutex_);
      Entry& entry = entries_[name];
      entry.text = std::move(shared);
      entry.version = ++version_;
    }
    changed_.notify_all();
  }

  /// Wakes all readers for good.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

  using Texts = std::map<std::string, std::shared_ptr<const std::string>>;

  /// What has changed since `seen`, which moves on; empty after `patience` without a change, or when closed.
  Texts wait(std::uint64_t& seen, std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [&] { return closed_ || version_ > seen; });
    Texts news;
    for (const auto& [name, entry] : entries_) {
      if (entry.version > seen) news[name] = entry.text;
    }
    seen = version_;
    return news;
  }

  [[nodiscard]] bool is_closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  struct Entry {
    std::shared_ptr<const std::string> text;
    std::uint64_t version = 0;
  };

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Entry> entries_;
  std::uint64_t version_ = 0;
  bool closed_ = false;
};

}  // namespace stagecraft::detail
