#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Sparse tensors as dense ones: MPI moves memory, and theirs lies in several tensors.
namespace stagecraft::mpi {

struct SparseForm {
  std::uint32_t place = 0;  ///< Among the tensors of the message.
  at::Layout layout = at::kSparse;
  bool is_coalesced = false;
  bool wants_gradient = false;
  std::vector<std::int64_t> sizes;
};

/// Puts values in the place of each sparse tensor, and its indices at the end of the list. Empty if there is none.
std::vector<SparseForm> take_apart(std::vector<at::Tensor>& tensors);
/// The reverse.
void put_together(std::vector<at::Tensor>& tensors, const std::vector<SparseForm>& forms);

}  // namespace stagecraft::mpi
