#include "recycled_memory.h"

#include <ATen/ops/from_blob.h>

#include <cstdlib>
#include <new>

namespace stagecraft::mpi {
namespace {

constexpr std::size_t kAlignment = 64;  // as LibTorch's own
constexpr std::size_t kMostKept = std::size_t{1} << 30;

struct Block {
  void* data;
  std::size_t bytes;
};

}  // namespace

struct RecycledMemory::Pool {
  std::mutex mutex;
  std::vector<Block> free;  // longest unused first
  std::size_t kept = 0;

  ~Pool() {
    for (const Block& block : free) std::free(block.data);
  }

  Block take(std::size_t bytes) {
    const std::lock_guard lock(mutex);
    for (auto it = free.rbegin(); it != free.rend(); ++it) {
      if (it->bytes != bytes) continue;
      const Block block = *it;
      free.erase(std::next(it).base());
      kept -= bytes;
      return block;
    }
    void* data = std::aligned_alloc(kAlignment, bytes);
    if (data == nullptr) throw std::bad_alloc();
    return {data, bytes};
  }

  void give_back(const Block& block) {
    const std::lock_guard lock(mutex);
    free.push_back(block);
    kept += block.bytes;
    while (kept > kMostKept) {
      kept -= free.front().bytes;
      std::free(free.front().data);
      free.erase(free.begin());
    }
  }
};

RecycledMemory::RecycledMemory() : pool_(std::make_shared<Pool>()) {}
RecycledMemory::~RecycledMemory() = default;

at::Tensor RecycledMemory::empty(at::IntArrayRef sizes, at::ScalarType type) {
  std::size_t bytes = c10::elementSize(type);
  for (const std::int64_t size : sizes) bytes *= static_cast<std::size_t>(size);
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const Block block = pool_->take(bytes);
  return at::from_blob(
      block.data, sizes, [pool = pool_, block](void*) { pool->give_back(block); }, at::TensorOptions().dtype(type));
}

}  // namespace stagecraft::mpi
