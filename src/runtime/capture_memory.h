#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

/// Memory that a captured step shares with code that it does not know, such as a mask that a module keeps for later.
namespace stagecraft {

using WeakMemory = c10::weak_intrusive_ptr<c10::StorageImpl>;

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

/// Watches the operations of this thread while a step is captured, and of the backwards that it runs, which LibTorch
/// has other threads for.
class CaptureMemory {
 public:
  /// `is_captured`: whether what is issued now goes into a graph. Memory that LibTorch makes beside it, for the state
  /// of its generators, is not the graph's. `is_kept`: whether others keep it for as long as the graph. Ends a watch of
  /// the same thread that began before, until it is over itself.
  CaptureMemory(c10::DeviceType device, std::function<bool()> is_captured,
                std::function<bool(const c10::StorageImpl*)> is_kept);
  ~CaptureMemory();
  CaptureMemory(const CaptureMemory&) = delete;
  CaptureMemory& operator=(const CaptureMemory&) = delete;

  /// Memory that was there before: the graph reads it in every replay, so it must stay. Some of it is the host's, from
  /// which a graph may copy. Once, at the end.
  [[nodiscard]] std::vector<GivenMemory> take_given();
  /// Tensors in such memory that somebody still has. Once, at the end.
  [[nodiscard]] std::vector<GivenTensor> take_tensors();
  /// Numbers on the CPU that were there before, and that somebody still has, or may have replaced. Once, at the end.
  [[nodiscard]] std::vector<HostNumber> take_numbers();
  /// Memory that operations have made, and that still has an owner.
  [[nodiscard]] std::vector<WeakMemory> made(bool also_on_host = false) const;
  /// Leaves of autograd that were there before, that need gradients, that no stage has and that somebody still has: a
  /// replay would not bring their gradients out. What compiled code hands to the next stage is a leaf too, from where no
  /// operation tells, but nobody has it any more.
  [[nodiscard]] bool has_unknown_leaves();
  /// Gives them back the gradients that they had.
  void reset_unknown_leaves() const;

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& operation);
  static void end(const at::RecordFunction& operation, at::ObserverContext* context);
  [[nodiscard]] bool is_on_host(const at::Tensor& tensor) const { return tensor.is_cpu() && device_ != at::kCPU; }
  void take(const at::Tensor& tensor, bool changes);
  void make(const at::Tensor& tensor);

  c10::DeviceType device_;
  std::function<bool()> is_captured_;
  std::function<bool(const c10::StorageImpl*)> is_kept_;
  c10::DebugInfoGuard watched_;
  at::CallbackHandle handle_;
  int depth_ = 0;  // of operations that run
  std::unordered_map<const c10::StorageImpl*, GivenMemory> given_;
  std::vector<GivenTensor> tensors_;
  std::vector<HostNumber> numbers_;
  std::unordered_map<const c10::StorageImpl*, WeakMemory> made_;  // which keeps their addresses their own
  std::unordered_map<const c10::StorageImpl*, GivenMemory> given_on_host_;
  std::unordered_map<const c10::StorageImpl*, WeakMemory> made_on_host_;
  std::vector<std::pair<at::Tensor, at::Tensor>> leaves_;  // with their gradients before
};

/// What somebody has kept, such as a number of the last step that a module has for others to read, and what a graph
/// writes in its place.
struct MovedOut {
  WeakMemory owner;
  at::Tensor left;  ///< Bytes in the memory that it had, which the graph goes on to use.

  /// Whether somebody still has it, as large as it was.
  [[nodiscard]] bool has_owner() const;
  /// Copies what the graph has written, if there is still an owner.
  void follow() const;
};

/// Whether something that was made has the same bytes. Waits for the device.
bool is_among(const c10::Storage& memory, const std::vector<WeakMemory>& made);

/// Gives what is still owned memory of its own, with the same data.
std::vector<MovedOut> move_out(const std::vector<WeakMemory>& made);

/// Makes what was never computed, and is still owned, numbers that nobody takes for results.
void fill_with_nan(const std::vector<WeakMemory>& made);

/// While it lives, notes whether an operation of this thread, or of a backward that it runs, takes a tensor with such
/// memory.
class UseWatch {
 public:
  explicit UseWatch(const std::vector<WeakMemory>& memory);
  ~UseWatch();
  UseWatch(const UseWatch&) = delete;
  UseWatch& operator=(const UseWatch&) = delete;

  /// The first operation that did; empty if none.
  [[nodiscard]] const std::string& found() const { return found_; }

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& operation);

  std::vector<const c10::StorageImpl*> memory_;
  c10::DebugInfoGuard watched_;
  at::CallbackHandle handle_;
  std::string found_;
};

}  // namespace stagecraft
