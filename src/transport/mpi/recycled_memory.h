#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace stagecraft::mpi {

/// Memory for large tensors that come and go in the same few sizes. The C library takes blocks above 32 MiB from the
/// system each time, and every page of them costs a fault; here a block that was given back serves the next of its
/// size. Keeps at most 1 GiB that nobody uses. Tensors may outlive it.
class RecycledMemory {
 public:
  static constexpr std::size_t kSmallest = std::size_t{32} << 20;  // below, the C library keeps blocks itself

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
