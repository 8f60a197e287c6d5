#include "tensor_kinds.h"

#include <sstream>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

[[noreturn]] void refuse_to_carry(const at::Tensor& tensor, const std::string& kind, const std::string& remedy) {
  std::ostringstream text;
  text << "a " << kind << " tensor (" << c10::toString(tensor.scalar_type());
  if (!tensor.is_nested()) text << ' ' << tensor.sizes();
  text << ") cannot be sent to another rank: " << remedy;
  throw InvalidArgument(text.str());
}

}  // namespace

bool is_sparse_of_any_layout(const at::Tensor& tensor) {
  const at::Layout layout = tensor.layout();
  return layout == at::kSparse || layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr ||
         layout == at::kSparseBsc;
}

void check_can_travel(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (tensor.is_quantized()) refuse_to_carry(tensor, "quantized", "send its dequantize()");
  if (tensor.is_nested()) refuse_to_carry(tensor, "nested", "send its parts as a list, or one padded tensor");
  if (tensor.layout() != at::kStrided && !is_sparse_of_any_layout(tensor)) {
    refuse_to_carry(tensor, "MKL-DNN", "send its to_dense()");
  }
}

std::vector<at::Tensor> parts_of_sparse(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach();
  if (plain.is_sparse()) return {plain._values(), plain._indices()};
  const bool by_rows = plain.layout() == at::kSparseCsr || plain.layout() == at::kSparseBsr;
  if (by_rows) return {plain.values(), plain.crow_indices(), plain.col_indices()};
  return {plain.values(), plain.ccol_indices(), plain.row_indices()};
}

}  // namespace stagecraft
