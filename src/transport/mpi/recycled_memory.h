#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

namespace stagecraft::mpi {

/// A pool of memory for received tensors, which come in the same few sizes. Blocks are reused by size, and lie on huge
/// pages where the system has them, because MPI pays for every page that it reads or writes. Keeps at most 1 GiB that
/// is unused. Tensors may outlive it.
class RecycledMemory {
 public:
  static constexpr std::size_t kSmallest = std::size_t{32} << 10;  // bytes; below, malloc is as fast

  RecycledMemory();
  ~RecycledMemory();
  RecycledMemory(const RecycledMemory&) = delete;
  RecycledMemory& operator=(const RecycledMemory&) = delete;

  /// An uninitialised, contiguous tensor on the CPU.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type);

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

}  // namespace stagecraft::mpi
