#pragma once

#include <condition_variable>
#include <list>
#include <mutex>
#include <random>
#include <thread>

#include "support/forwarding_channel.h"

namespace stagecraft::conformance {

/// A channel for tests that delivers messages to the channel below late and, as far as tags allow, in another order. A
/// notice never overtakes earlier messages to the same rank.
class DelayingChannel : public ForwardingChannel {
 public:
  DelayingChannel(std::unique_ptr<Channel> below, unsigned seed)
      : ForwardingChannel(std::move(below)), random_(seed), carrier_([this] { carry(); }) {}
  ~DelayingChannel() override {
    {
      const std::lock_guard lock(mutex_);
      is_closing_ = true;
    }
    changed_.notify_all();
    carrier_.join();
  }
  DelayingChannel(const DelayingChannel&) = delete;
  DelayingChannel& operator=(const DelayingChannel&) = delete;

  [[nodiscard]] CommModel model() const override { return CommModel::kTagged; }
  void send(RankId to, const Tag& tag, Message message, std::uint64_t step) override {
    put({to, tag, std::move(message), step, std::nullopt, {}});
  }
  void tell(RankId to, const Notice& notice) override { put({to, {}, {}, 0, notice, {}}); }

 private:
  struct Item {
    RankId to;
    Tag tag;
    Message message;
    std::uint64_t step;
    std::optional<Notice> notice;
    Clock::time_point due;
  };

  void put(Item item) {
    {
      const std::lock_guard lock(mutex_);
      item.due = Clock::now() + std::chrono::microseconds(std::uniform_int_distribution<int>(0, 3000)(random_));
      for (const Item& before : items_) {
        const bool is_bound = item.notice || (!before.notice && before.tag == item.tag);
        if (before.to == item.to && is_bound) item.due = std::max(item.due, before.due);
      }
      // By delivery time; equal times in the order of sending.
      const auto later =
          std::find_if(items_.begin(), items_.end(), [&](const Item& other) { return other.due > item.due; });
      items_.insert(later, std::move(item));
    }
    changed_.notify_all();
  }

  /// Delivers the remaining messages before the rank ends.
  void carry() {
    std::unique_lock lock(mutex_);
    while (true) {
      if (items_.empty()) {
        if (is_closing_) return;
        changed_.wait(lock);
        continue;
      }
      if (!is_closing_ && Clock::now() < items_.front().due) {
        const Clock::time_point due = items_.front().due;
        changed_.wait_until(lock, due);
        continue;
      }
      Item item = std::move(items_.front());
      items_.pop_front();
      lock.unlock();
      if (item.notice) {
        ForwardingChannel::tell(item.to, *item.notice);
      } else {
        ForwardingChannel::send(item.to, item.tag, std::move(item.message), item.step);
      }
      item = Item();
      lock.lock();
    }
  }

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::mt19937 random_;
  std::list<Item> items_;
  bool is_closing_ = false;
  std::thread carrier_;
};

}  // namespace stagecraft::conformance
