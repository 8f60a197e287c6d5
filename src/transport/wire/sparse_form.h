#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Sends a sparse tensor as the dense tensors that it consists of, because transports move plain memory.
namespace stagecraft::wire {

struct SparseForm {
  std::uint32_t place = 0;  ///< Index among the tensors of the message.
  at::Layout layout = at::kSparse;
  bool is_coalesced = false;
  bool wants_gradient = false;
  std::vector<std::int64_t> sizes;
};

/// Replaces each sparse tensor by its values, and appends its indices to the list. Returns a form for each.
std::vector<SparseForm> take_apart(std::vector<at::Tensor>& tensors);
/// Reverses `take_apart`.
void put_together(std::vector<at::Tensor>& tensors, const std::vector<SparseForm>& forms);

}  // namespace stagecraft::wire
