#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

/// Memory that was there before a step was captured, and that its graphs read.
namespace stagecraft {

using WeakMemory = c10::weak_intrusive_ptr<c10::StorageImpl>;

/// Null if the tensor is undefined, or not one piece of memory, such as a sparse one.
inline const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

/// Some memory, by address.
using Memories = std::unordered_set<const c10::StorageImpl*>;

/// Nothing, if the tensor is undefined or not one piece of memory.
inline void add_memory_of(const at::Tensor& tensor, Memories& all) {
  if (const c10::StorageImpl* memory = memory_of(tensor)) all.insert(memory);
}

/// How many hold a tensor, or its memory. If Python has seen it, an object there holds it for as long as it lives; that
/// counts only if somebody holds the object.
std::size_t holders_of(const at::Tensor& tensor);
std::size_t holders_of(const c10::Storage& storage);

/// The one reference that all graphs of the process have to some memory, so that the others can be counted.
using HeldMemory = std::shared_ptr<const c10::Storage>;
HeldMemory hold(const c10::Storage& storage);

/// Memory that was there before a capture, and that the graph reads. Some of it was made by an operation for others
/// that it is made of; nobody else has seen that.
struct GivenMemory {
  HeldMemory storage;
  bool is_inner = false;     ///< It was first seen within an operation, or compiled code has made it.
  bool is_number = false;    ///< A tensor without dimensions.
  bool is_changed = false;   ///< The graph writes it too.
  bool is_replaced = false;  ///< By the module itself: a mask for another shape.
  bool is_remade = false;    ///< And a step has made the same again.
  const void* begin = nullptr;

  [[nodiscard]] const c10::StorageImpl* memory() const { return storage->unsafeGetStorageImpl(); }
  [[nodiscard]] bool is_ours_alone() const { return holders_of(*storage) == 1; }
  /// Whether it was of somebody who does not have it any more.
  [[nodiscard]] bool was_let_go() const { return !is_inner && is_ours_alone(); }
  /// Whether its owner has given it another size, and so other memory.
  [[nodiscard]] bool has_moved() const { return storage->data() != begin; }
};

/// A tensor that was there before a capture, as the step has read it.
class GivenTensor {
 public:
  explicit GivenTensor(const at::Tensor& tensor);
  [[nodiscard]] bool is(const at::Tensor& tensor) const {
    return tensor_._unsafe_get_target() == tensor.unsafeGetTensorImpl();
  }
  /// Whether nobody has it any more.
  [[nodiscard]] bool is_gone() const { return tensor_.expired(); }
  /// Whether it is trained now and was not: the graph has no gradient of it.
  [[nodiscard]] bool is_trained() const;
  /// Whether it has another shape now, or other memory.
  [[nodiscard]] bool has_changed() const;

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl, at::UndefinedTensorImpl> tensor_;
  const c10::StorageImpl* memory_;  // which the graph keeps
  std::int64_t offset_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
  bool is_frozen_;
};

/// A tensor without dimensions on the CPU: kernels get its value when they are captured.
class HostNumber {
 public:
  explicit HostNumber(const at::Tensor& tensor);
  /// Whether nobody has it any more.
  [[nodiscard]] bool was_let_go() const { return holders_of(*storage_) == 1; }
  /// Whether a step would read another number by now, or somewhere else.
  [[nodiscard]] bool has_changed() const { return was_let_go() || read() != value_; }
  [[nodiscard]] bool is(const at::Tensor& tensor) const;

 private:
  [[nodiscard]] std::string read() const;

  HeldMemory storage_;
  std::size_t begin_;
  std::size_t bytes_;
  std::string value_;
};

}  // namespace stagecraft
