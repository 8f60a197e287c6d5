#include "recycled_memory.h"

#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace stagecraft::mpi {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMostKept = std::size_t{1} << 30;

std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

/// The size of the block for this many bytes: one of 8 between two powers of two.
std::size_t block_size(std::size_t bytes) {
  return rounded_up(bytes, std::max<std::size_t>(64, std::bit_floor(bytes) / 8));
}

/// Blocks of one size, allocated and freed together.
class Slab {
 public:
  explicit Slab(std::size_t block) {
    const std::size_t count = std::max<std::size_t>(1, kHugePage / block);
    bytes_ = rounded_up(count * block, kHugePage);
    void* memory = nullptr;
    if (posix_memalign(&memory, kHugePage, bytes_) != 0) throw std::bad_alloc();
    (void)madvise(memory, bytes_, MADV_HUGEPAGE);  // advice: it may be declined
    memory_ = static_cast<char*>(memory);
    for (std::size_t i = count; i-- > 0;) free_.push_back(memory_ + i * block);
    blocks_ = count;
  }
  ~Slab() { std::free(memory_); }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_full() const { return free_.empty(); }
  [[nodiscard]] bool is_unused() const { return free_.size() == blocks_; }
  void* take() {
    void* block = free_.back();
    free_.pop_back();
    return block;
  }
  void give_back(void* block) { free_.push_back(block); }

 private:
  char* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t blocks_ = 0;
  std::vector<void*> free_;  // the one used last is taken first
};

}  // namespace

struct RecycledMemory::Pool {
  std::mutex mutex;
  std::map<std::size_t, std::list<Slab>> slabs;  // by the size of their blocks
  std::size_t unused = 0;                        // bytes in slabs without a block in use

  std::pair<Slab*, void*> take(std::size_t block) {
    const std::lock_guard lock(mutex);
    std::list<Slab>& alike = slabs[block];
    auto slab = std::find_if(alike.begin(), alike.end(), [](const Slab& one) { return !one.is_full(); });
    if (slab == alike.end()) {
      slab = alike.emplace(alike.begin(), block);
    } else if (slab->is_unused()) {
      unused -= slab->bytes();
    }
    return {&*slab, slab->take()};
  }

  void give_back(Slab* slab, void* block) {
    const std::lock_guard lock(mutex);
    slab->give_back(block);
    if (!slab->is_unused()) return;
    unused += slab->bytes();
    for (auto alike = slabs.begin(); unused > kMostKept && alike != slabs.end(); ++alike) {
      alike->second.remove_if([&](const Slab& one) {
        if (!one.is_unused() || unused <= kMostKept) return false;
        unused -= one.bytes();
        return true;
      });
    }
  }
};

RecycledMemory::RecycledMemory() : pool_(std::make_shared<Pool>()) {}
RecycledMemory::~RecycledMemory() = default;

at::Tensor RecycledMemory::empty(at::IntArrayRef sizes, at::ScalarType type) {
  std::size_t bytes = c10::elementSize(type);
  for (const std::int64_t size : sizes) bytes *= static_cast<std::size_t>(size);
  const auto [slab, block] = pool_->take(block_size(bytes));
  return at::from_blob(
      block, sizes, [pool = pool_, slab = slab](void* data) { pool->give_back(slab, data); },
      at::TensorOptions().dtype(type));
}

}  // namespace stagecraft::mpi
