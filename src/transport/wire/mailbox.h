#pragma once

#include <c10/core/Event.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

#include "envelope.h"
#include "stagecraft/transport/channel.h"

namespace stagecraft::wire {

/// What has arrived at this rank and is not taken yet.
class Mailbox {
 public:
  using Clock = std::chrono::steady_clock;

  struct Entry {
    RankId from;
    Tag tag;
    std::uint64_t step = 0;
    Envelope envelope;
    std::vector<at::Tensor> tensors;
    std::exception_ptr failure = {};         ///< Why it could not be received, if so.
    std::optional<c10::Event> written = {};  ///< Of tensors that a device has still to write.
  };

  /// Announces a message whose tensors are still coming. Returns false for one of a failed step, which is to be
  /// dropped.
  bool announce(RankId from, const Tag& tag, std::uint64_t step) {
    const std::lock_guard lock(mutex_);
    if (step < first_step_) return false;
    coming_.push_back({from, tag, step, {}, {}});
    return true;
  }
  /// Takes in the message; if it was announced, in the place of that announcement.
  void deliver(Entry entry) {
    const std::lock_guard lock(mutex_);
    drop_announcement(entry.from, entry.tag);
    if (entry.step >= first_step_) entries_.push_back(std::move(entry));
    ring();
  }
  std::optional<Entry> take(RankId from, const Tag& tag) {
    const std::lock_guard lock(mutex_);
    for (auto one = entries_.begin(); one != entries_.end(); ++one) {
      if (one->from != from || one->tag != tag) continue;
      Entry entry = std::move(*one);
      entries_.erase(one);
      return entry;
    }
    return std::nullopt;
  }
  bool is_coming(RankId from, const Tag& tag) {
    const std::lock_guard lock(mutex_);
    for (const auto* list : {&coming_, &entries_}) {
      for (const Entry& one : *list) {
        if (one.from == from && one.tag == tag) return true;
      }
    }
    return false;
  }
  /// The message that was announced will not come.
  void forget(RankId from, const Tag& tag) {
    const std::lock_guard lock(mutex_);
    drop_announcement(from, tag);
    ring();
  }
  /// Nothing more comes from this rank.
  void forget(RankId from) {
    const std::lock_guard lock(mutex_);
    std::erase_if(coming_, [&](const Entry& one) { return one.from == from; });
    ring();
  }
  /// Drops messages of steps before `next`, also those that arrive later.
  void drop_before(std::uint64_t next) {
    std::deque<Entry> dropped;  // destroyed after the lock is released
    const std::lock_guard lock(mutex_);
    first_step_ = next;
    for (Entry& one : entries_) {
      if (one.step < next) dropped.push_back(std::move(one));
    }
    std::erase_if(entries_, [&](const Entry& one) { return one.step < next; });
    std::erase_if(coming_, [&](const Entry& one) { return one.step < next; });
  }

  [[nodiscard]] std::uint64_t news() const { return news_.load(std::memory_order_acquire); }
  void wait_for_news(std::uint64_t seen, Clock::time_point until) {
    std::unique_lock lock(mutex_);
    arrival_.wait_until(lock, until, [&] { return news() != seen; });
  }
  void wake() {
    const std::lock_guard lock(mutex_);
    ring();
  }

 private:
  /// Under the lock.
  void drop_announcement(RankId from, const Tag& tag) {
    for (auto one = coming_.begin(); one != coming_.end(); ++one) {
      if (one->from != from || one->tag != tag) continue;
      coming_.erase(one);
      return;
    }
  }
  void ring() {
    news_.fetch_add(1, std::memory_order_release);
    arrival_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable arrival_;
  std::deque<Entry> entries_;  // in the order of arrival
  std::deque<Entry> coming_;
  std::uint64_t first_step_ = 0;
  std::atomic<std::uint64_t> news_ = 0;  // changed under the lock; read without it by a thread about to sleep
};

}  // namespace stagecraft::wire
