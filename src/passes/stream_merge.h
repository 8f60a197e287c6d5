#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace stagecraft::detail {

/// K-way merge of sorted streams of keys: gives the stream with the smallest next key. A binary heap whose top is
/// replaced in place, which takes one or two comparisons for the two to four streams of a typical rank.
class StreamMerge {
 public:
  /// Larger than every key: a stream at its end.
  static constexpr std::uint64_t kDone = UINT64_MAX;

  void add(std::uint64_t first_key, std::size_t stream) {
    heap_.emplace_back(first_key, stream);
    for (std::size_t i = heap_.size() - 1; i > 0 && heap_[i].first < heap_[(i - 1) / 2].first; i = (i - 1) / 2) {
      std::swap(heap_[i], heap_[(i - 1) / 2]);
    }
  }

  [[nodiscard]] std::uint64_t next_key() const { return heap_.empty() ? kDone : heap_.front().first; }
  [[nodiscard]] std::size_t next_stream() const { return heap_.front().second; }

  /// Sets the next key of the stream that `next_stream` gave.
  void advance(std::uint64_t key) {
    const std::pair moving(key, heap_.front().second);
    std::size_t i = 0;
    for (std::size_t child = 1; child < heap_.size(); child = 2 * i + 1) {
      if (child + 1 < heap_.size() && heap_[child + 1].first < heap_[child].first) ++child;
      if (heap_[child].first >= key) break;
      heap_[i] = heap_[child];
      i = child;
    }
    heap_[i] = moving;
  }

 private:
  std::vector<std::pair<std::uint64_t, std::size_t>> heap_;
};

}  // namespace stagecraft::detail
