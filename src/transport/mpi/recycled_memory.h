#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

namespace stagecraft::mpi {

/// Memory for what arrives: tensors that come and go in the same few sizes. A block that was given back serves the next
/// of its size, and blocks lie on huge pages where the system has them: MPI pays for every page that it reads from
/// another process or writes here. Keeps at most 1 GiB that nobody uses. Tensors may outlive it.
class RecycledMemory {
 public:
  static constexpr std::size_t kSmallest = std::size_t{32} << 10;  // below, the C library does as well

  RecycledMemory();
  ~RecycledMemory();
  RecycledMemory(const RecycledMemory&) = delete;
  RecycledMemory& operator=(const RecycledMemory&) = delete;

  /// On the CPU, contiguous, with whatever is in it.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type);

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

}  // namespace stagecraft::mpi
