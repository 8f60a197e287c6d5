#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstddef>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace stagecraft {

/// Watches the operations of this thread, and of the backwards that it runs, for tensors that lanes must not share (see
/// Lanes):
///
/// - what one lane has computed and another uses, such as a mask that a module keeps for later microbatches: freed, its
///   memory would go back to the first while the second still reads it;
/// - what existed before, is changed in place, and is used by actions of two orders, such as a counter of two stages
///   that is a buffer of neither.
///
/// Gradients of parameters are there until the end, so that all lanes may add to them, but only actions of one order: a
/// loss may reach the parameters of an earlier stage.
class TensorWatch {
 public:
  /// One at a time in a process, because LibTorch's callbacks carry no state.
  TensorWatch(c10::DeviceType device, std::function<bool(const c10::StorageImpl*)> is_gradient);
  ~TensorWatch();
  TensorWatch(const TensorWatch&) = delete;
  TensorWatch& operator=(const TensorWatch&) = delete;

  /// Whom the operations from now on belong to.
  void enter(std::size_t lane, std::size_t order);
  /// What was found first, as a reason; empty if nothing was.
  [[nodiscard]] const std::string& found() const { return found_; }

 private:
  struct Inputs;  // of the operation that runs

  /// Memory that an operation of a lane has allocated.
  struct Computed {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;  // so that its address stays its own
    std::size_t lane;
    std::size_t order;
  };
  /// Memory that was there before.
  struct Given {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
    std::size_t order;
    bool is_shared = false;
    bool is_changed = false;
  };

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& operation);
  static void end(const at::RecordFunction& operation, at::ObserverContext* inputs);
  void use(const at::Tensor& tensor, bool changes, const at::RecordFunction& operation);
  void compute(const at::Tensor& tensor, const Inputs& inputs);
  void report(const std::string& what, const at::RecordFunction& operation);

  static TensorWatch* active_;

  c10::DeviceType device_;
  std::function<bool(const c10::StorageImpl*)> is_gradient_;
  at::CallbackHandle handle_;
  std::size_t lane_ = 0;
  std::size_t order_ = 0;
  std::unordered_map<const c10::StorageImpl*, Computed> computed_;
  std::unordered_map<const c10::StorageImpl*, Given> given_;
  std::string found_;
};

}  // namespace stagecraft
