#include "made_memory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace stagecraft {
namespace {

at::Tensor bytes_of(const c10::intrusive_ptr<c10::StorageImpl>& memory) {
  const auto options = at::TensorOptions(at::kByte).device(memory->device());
  return at::empty({0}, options).set_(c10::Storage(memory), 0, {static_cast<std::int64_t>(memory->nbytes())}, {1});
}

}  // namespace

bool is_among(const c10::Storage& memory, const std::vector<WeakMemory>& made) {
  const at::Tensor bytes = bytes_of(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(memory.unsafeGetStorageImpl()));
  return std::any_of(made.begin(), made.end(), [&](const WeakMemory& weak) {
    const c10::intrusive_ptr<c10::StorageImpl> other = weak.lock();
    return other && other->device() == memory.device() && other->nbytes() == memory.nbytes() &&
           at::equal(bytes_of(other), bytes);
  });
}

std::vector<MovedOut> move_out(const std::vector<WeakMemory>& made) {
  std::vector<MovedOut> all;
  for (const WeakMemory& weak : made) {
    const c10::intrusive_ptr<c10::StorageImpl> memory = weak.lock();
    if (!memory || memory->nbytes() == 0) continue;
    // A storage that takes over the memory of the graph, in exchange for a copy.
    at::Tensor left = bytes_of(memory).clone();
    c10::DataPtr& copy = left.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    copy = memory->set_data_ptr(std::move(copy));
    all.push_back({weak, std::move(left)});
  }
  return all;
}

bool MovedOut::has_owner() const {
  const c10::intrusive_ptr<c10::StorageImpl> memory = owner.lock();
  return memory && static_cast<std::int64_t>(memory->nbytes()) == left.numel();
}

void MovedOut::follow() const {
  if (has_owner()) bytes_of(owner.lock()).copy_(left);
}

void fill_with_nan(const std::vector<WeakMemory>& made) {
  for (const WeakMemory& weak : made) {
    const c10::intrusive_ptr<c10::StorageImpl> memory = weak.lock();
    if (memory && memory->nbytes() > 0) bytes_of(memory).fill_(0xff);  // NaN in all types of floating point
  }
}

}  // namespace stagecraft
