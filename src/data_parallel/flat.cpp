#include "flat.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

constexpr std::int64_t kAlignment = 64;  // bytes; that of LibTorch's own tensors

std::int64_t rounded_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// Takes the memory of a storage away. Views of it keep the storage, and find the data again after `give_memory`.
void take_memory(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
}

void give_memory(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  at::Tensor fresh = at::empty({static_cast<std::int64_t>(storage->nbytes())}, tensor.options().dtype(at::kByte));
  storage->set_data_ptr_noswap(std::move(fresh.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
}

/// Gives a tensor the data of another one, in place: all holders see the change, and autograd none.
void become(const at::Tensor& tensor, const at::Tensor& other) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
}

}  // namespace

at::Tensor plain(const at::Tensor& view) { return view.variable_data(); }

at::Tensor shaped_like(const at::Tensor& flat, std::int64_t begin, const at::Tensor& like) {
  const bool keeps_strides = like.is_non_overlapping_and_dense();
  return flat.as_strided(like.sizes(), keeps_strides ? like.strides() : at::empty(like.sizes(), at::kMeta).strides(),
                         begin);
}

void Flat::lay_out(int parts, int part) {
  const at::NoGradGuard no_grad;
  parts_ = parts;
  part_ = part;
  const auto itemsize =
      static_cast<std::int64_t>(std::min(c10::elementSize(kind_.master_type), c10::elementSize(kind_.compute_type)));
  const std::int64_t unit = std::max<std::int64_t>(1, kAlignment / itemsize);
  std::int64_t size = 0;
  for (Piece& piece : pieces) {
    piece.size = piece.parameter.numel();
    piece.begin = size;
    size = rounded_up(size + piece.size, unit);
  }
  size = rounded_up(std::max<std::int64_t>(size, 1), unit * parts);
  const at::TensorOptions options = pieces.front().parameter.options().requires_grad(false);
  const at::Tensor masters = at::zeros({size}, options.dtype(kind_.master_type));
  for (const Piece& piece : pieces) shaped_like(masters, piece.begin, piece.parameter).copy_(piece.parameter);
  whole_ = is_mixed() ? masters.to(kind_.compute_type) : masters;
  shard_ = masters;
  if (parts > 1) shard_ = masters.narrow(0, size / parts * part, size / parts).clone();
  for (Piece& piece : pieces) {
    piece.view = shaped_like(whole_, piece.begin, piece.parameter);
    piece.parameter.mutable_grad().reset();
    piece.parameter.set_data(piece.view);
  }
}

at::Tensor Flat::part_of(const Piece& piece, const at::Tensor& shard) const {
  if (parts_ == 1) return plain(shaped_like(shard, piece.begin, piece.view));
  const Piece::Part own = piece.within(shard_begin(part_), shard_begin(part_ + 1));
  return plain(shard.narrow(0, own.offset, own.size));
}

void Flat::free() {
  for (Piece& piece : pieces) {
    become(piece.parameter,
           at::empty_strided(piece.view.sizes(), piece.view.strides(), piece.view.options().device(at::kMeta)));
  }
  take_memory(whole_);
  has_memory_ = false;
  is_stale = true;
}

void Flat::provide() {
  give_memory(whole_);
  for (Piece& piece : pieces) become(piece.parameter, piece.view);
  has_memory_ = true;
}

void Flat::collect_gradients() {
  if (!is_mixed()) return;
  const at::NoGradGuard no_grad;
  for (Piece& piece : pieces) {
    at::Tensor gradient = std::move(piece.parameter.mutable_grad());
    piece.parameter.mutable_grad().reset();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    if (piece.sum.defined()) {
      piece.sum.add_(gradient);
    } else {
      piece.sum = gradient.to(kind_.master_type);
    }
  }
}

void Flat::drop_gradients() {
  for (Piece& piece : pieces) {
    piece.parameter.mutable_grad().reset();
    piece.sum.reset();
  }
}

}  // namespace stagecraft
