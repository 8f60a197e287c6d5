#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace stagecraft::stand_in {

/// Memory of the graphs of one device. As on a GPU, what a capture frees is used again, by the same stream: in this
/// capture or a later one. It is returned when nobody has any of it.
class Pool {
 public:
  /// Zeros.
  static void* lend(const std::shared_ptr<Pool>& pool, std::size_t bytes, std::int64_t stream);
  /// Returns false if it is not of any pool.
  static bool take_back(void* data);
  /// Whether the capture that is under way has allocated it.
  [[nodiscard]] bool is_of_capture(const void* data) const;
  /// Fills what the capture has allocated with numbers that nobody takes for results: a capture computes nothing.
  void end_capture();
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  struct Block;
  struct Lent;

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> all_;
  std::map<std::pair<std::int64_t, std::size_t>, std::vector<Block*>> free_;  // by stream and size
  std::vector<Block*> of_capture_;
  std::int64_t bytes_ = 0;
};

/// While it lives, tensors that this thread makes on the CPU are the pool's. All other memory of the program is zeroed
/// when it is allocated, so that operators can run on inputs that nobody has filled yet.
class PoolScope {
 public:
  explicit PoolScope(std::shared_ptr<Pool> pool);
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;
};

/// While it lives, this thread's tensors are ordinary ones again.
class OutsidePool {
 public:
  OutsidePool();
  ~OutsidePool();
  OutsidePool(const OutsidePool&) = delete;
  OutsidePool& operator=(const OutsidePool&) = delete;

 private:
  std::shared_ptr<Pool> pool_;
};

}  // namespace stagecraft::stand_in
