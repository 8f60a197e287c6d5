#include "held_memory.h"

#include <mutex>
#include <unordered_map>

namespace stagecraft {

std::size_t holders_of(const at::Tensor& tensor) {
  return tensor.use_count() - (tensor.unsafeGetTensorImpl()->pyobj_slot()->has_unique_reference() ? 1 : 0);
}

std::size_t holders_of(const c10::Storage& storage) {
  return storage.use_count() - (storage.unsafeGetStorageImpl()->pyobj_slot()->has_unique_reference() ? 1 : 0);
}

HeldMemory hold(const c10::Storage& storage) {
  struct All {
    std::mutex mutex;
    std::unordered_map<const c10::StorageImpl*, std::weak_ptr<const c10::Storage>> held;
  };
  static All& all = *new All;  // until the process ends
  const c10::StorageImpl* memory = storage.unsafeGetStorageImpl();
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<const c10::Storage>& known = all.held[memory];
  if (HeldMemory held = known.lock()) return held;
  HeldMemory held(new c10::Storage(storage), [memory](const c10::Storage* last) {
    {
      const std::lock_guard locked(all.mutex);
      const auto own = all.held.find(memory);
      if (own != all.held.end() && own->second.expired()) all.held.erase(own);  // unless it is held anew already
    }
    delete last;
  });
  known = held;
  return held;
}

HostNumber::HostNumber(const at::Tensor& tensor)
    : storage_(hold(tensor.storage())),
      begin_(static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize()),
      bytes_(tensor.itemsize()),
      value_(read()) {}

bool HostNumber::is(const at::Tensor& tensor) const {
  return tensor.storage().unsafeGetStorageImpl() == storage_->unsafeGetStorageImpl() &&
         static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize() == begin_;
}

std::string HostNumber::read() const { return {static_cast<const char*>(storage_->data()) + begin_, bytes_}; }

GivenTensor::GivenTensor(const at::Tensor& tensor)
    : tensor_(tensor.getIntrusivePtr()),
      memory_(memory_of(tensor)),
      offset_(tensor.storage_offset()),
      sizes_(tensor.sizes().vec()),
      strides_(tensor.strides().vec()),
      is_frozen_(!tensor.requires_grad()) {}

bool GivenTensor::is_trained() const {
  const auto tensor = tensor_.lock();
  if (!tensor || !is_frozen_) return false;
  const at::Tensor now(tensor);
  return now.requires_grad() && now.is_leaf();  // else the step itself has computed it there
}

bool GivenTensor::has_changed() const {
  const auto tensor = tensor_.lock();
  if (!tensor) return false;
  const at::Tensor now(tensor);
  return memory_of(now) != memory_ || now.storage_offset() != offset_ || now.sizes() != at::IntArrayRef(sizes_) ||
         now.strides() != at::IntArrayRef(strides_);
}

}  // namespace stagecraft
