#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

/// Which tensors can be sent between ranks. The same on every transport, so that a program does not depend on where its
/// ranks run.
namespace stagecraft {

/// Dense tensors can be sent, also conjugated, expanded or transposed ones and those on the meta device, and sparse
/// ones of all layouts. Throws InvalidArgument for a quantized or nested tensor, and for one of an opaque layout
/// (MKL-DNN).
void check_can_travel(const at::Tensor& tensor);

bool is_sparse_of_any_layout(const at::Tensor& tensor);

/// The dense tensors inside a sparse one: its values, then its indices.
std::vector<at::Tensor> parts_of_sparse(const at::Tensor& tensor);

}  // namespace stagecraft
