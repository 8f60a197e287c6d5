#include "memory.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "streams.h"

namespace stagecraft::stand_in {
namespace {

constexpr std::size_t kGrain = 512;

std::shared_ptr<Pool>& pool_of_thread() {
  thread_local std::shared_ptr<Pool> pool;
  return pool;
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::shared_ptr<Pool>& pool = pool_of_thread();
    void* made = nullptr;
    if (pool && bytes > 0) {
      made = Pool::lend(pool, bytes, current_stream_id());
    } else {
      made = c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
      if (bytes > 0) std::memset(made, 0, bytes);
    }
    return {made, made, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void release(void* data) {
    if (!Pool::take_back(data)) c10::GetDefaultCPUAllocator()->raw_deallocate(data);
  }
};

const bool kHasMemory = [] {
  c10::SetCPUAllocator(new Allocator, /*priority=*/255);  // until the process ends
  return true;
}();

}  // namespace

struct Pool::Block {
  std::pair<std::int64_t, std::size_t> kind;
  c10::DataPtr memory;
};

/// What is lent, of all pools.
struct Pool::Lent {
  std::shared_ptr<Pool> pool;
  Block* block;

  struct All {
    std::mutex mutex;
    std::unordered_map<void*, Lent> by_address;
  };
  static All& all() {
    static All& those = *new All;  // until the process ends
    return those;
  }
};

void* Pool::lend(const std::shared_ptr<Pool>& pool, std::size_t bytes, std::int64_t stream) {
  const std::lock_guard lock(pool->mutex_);
  const std::pair kind(stream, (bytes + kGrain - 1) / kGrain * kGrain);
  std::vector<Block*>& free = pool->free_[kind];
  Block* block = nullptr;
  if (free.empty()) {
    block = pool->all_.emplace_back(std::make_unique<Block>()).get();
    *block = {kind, c10::GetDefaultCPUAllocator()->allocate(kind.second)};
    pool->bytes_ += static_cast<std::int64_t>(kind.second);
  } else {
    block = free.back();
    free.pop_back();
  }
  pool->of_capture_.push_back(block);
  std::memset(block->memory.get(), 0, kind.second);
  const std::lock_guard locked(Lent::all().mutex);
  Lent::all().by_address[block->memory.get()] = {pool, block};
  return block->memory.get();
}

bool Pool::take_back(void* data) {
  Lent lent;
  {
    const std::lock_guard locked(Lent::all().mutex);
    const auto known = Lent::all().by_address.find(data);
    if (known == Lent::all().by_address.end()) return false;
    lent = std::move(known->second);
    Lent::all().by_address.erase(known);
  }
  const std::lock_guard lock(lent.pool->mutex_);
  lent.pool->free_[lent.block->kind].push_back(lent.block);
  return true;
}

bool Pool::is_of_capture(const void* data) const {
  const std::lock_guard lock(mutex_);
  const auto* byte = static_cast<const char*>(data);
  return std::any_of(of_capture_.begin(), of_capture_.end(), [&](const Block* block) {
    const auto* begin = static_cast<const char*>(block->memory.get());
    return byte >= begin && byte < begin + block->kind.second;
  });
}

void Pool::end_capture() {
  const std::lock_guard lock(mutex_);
  for (Block* block : of_capture_) std::memset(block->memory.get(), 0xff, block->kind.second);
  of_capture_.clear();
}

PoolScope::PoolScope(std::shared_ptr<Pool> pool) { pool_of_thread() = std::move(pool); }
PoolScope::~PoolScope() { pool_of_thread().reset(); }

OutsidePool::OutsidePool() : pool_(std::exchange(pool_of_thread(), nullptr)) {}
OutsidePool::~OutsidePool() { pool_of_thread() = std::move(pool_); }

}  // namespace stagecraft::stand_in
