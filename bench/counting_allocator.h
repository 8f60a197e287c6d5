#pragma once

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

/// Counts the bytes that LibTorch holds on the CPU in this process, now and at most.
namespace bench {

inline std::atomic<std::int64_t> held = 0;
inline std::atomic<std::int64_t> most = 0;

/// Counts what LibTorch takes. The size of a block stands before it.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::size_t whole = (bytes + 2 * kHeader - 1) / kHeader * kHeader;
    auto* block = static_cast<char*>(std::aligned_alloc(kHeader, whole));
    if (block == nullptr) throw std::bad_alloc();
    *reinterpret_cast<std::int64_t*>(block) = static_cast<std::int64_t>(bytes);
    const std::int64_t now = held += static_cast<std::int64_t>(bytes);
    for (std::int64_t seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    return {block + kHeader, block + kHeader, &release, c10::Device(c10::kCPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static constexpr std::size_t kHeader = 64;  // LibTorch's alignment

  static void release(void* data) {
    if (data == nullptr) return;
    char* block = static_cast<char*>(data) - kHeader;
    held -= *reinterpret_cast<std::int64_t*>(block);
    std::free(block);
  }
};

/// From now on.
inline void count_bytes() {
  static CountingAllocator counting;
  c10::SetCPUAllocator(&counting, /*priority=*/100);
}

}  // namespace bench
