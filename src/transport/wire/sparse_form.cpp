#include "sparse_form.h"

#include <ATen/ATen.h>

#include "tensor_kinds.h"

namespace stagecraft::wire {

std::vector<SparseForm> take_apart(std::vector<at::Tensor>& tensors) {
  std::vector<SparseForm> forms;
  const std::size_t count = tensors.size();
  for (std::size_t i = 0; i < count; ++i) {
    const at::Tensor tensor = tensors[i];
    if (!tensor.defined() || !is_sparse_of_any_layout(tensor)) continue;
    forms.push_back({static_cast<std::uint32_t>(i), tensor.layout(), tensor.is_sparse() && tensor.is_coalesced(),
                     tensor.requires_grad(), tensor.sizes().vec()});
    const std::vector<at::Tensor> parts = parts_of_sparse(tensor);
    tensors[i] = parts.front();
    tensors.insert(tensors.end(), parts.begin() + 1, parts.end());
  }
  return forms;
}

void put_together(std::vector<at::Tensor>& tensors, const std::vector<SparseForm>& forms) {
  std::size_t count = tensors.size();
  for (const SparseForm& form : forms) count -= form.layout == at::kSparse ? 1 : 2;
  std::size_t next = count;
  for (const SparseForm& form : forms) {
    at::Tensor& whole = tensors[form.place];
    const at::Tensor values = whole;
    const at::TensorOptions options = values.options().layout(form.layout);
    if (form.layout == at::kSparse) {
      whole = at::_sparse_coo_tensor_unsafe(tensors[next], values, form.sizes, options);
      whole._coalesced_(form.is_coalesced);
      next += 1;
    } else {
      whole = at::_sparse_compressed_tensor_unsafe(tensors[next], tensors[next + 1], values, form.sizes, options);
      next += 2;
    }
    if (form.wants_gradient) whole.set_requires_grad(true);
  }
  tensors.resize(count);
}

}  // namespace stagecraft::wire
