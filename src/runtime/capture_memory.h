#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

/// Memory that a captured step shares with code that it does not know, such as a mask that a module keeps for later.
namespace stagecraft {

using WeakMemory = c10::weak_intrusive_ptr<c10::StorageImpl>;

/// Watches the operations of this thread while a step is captured.
class CaptureMemory {
 public:
  /// `is_kept`: whether others keep it for as long as the graph. Ends a watch of the same thread that began before,
  /// until it is over itself.
  CaptureMemory(c10::DeviceType device, std::function<bool(const c10::StorageImpl*)> is_kept);
  ~CaptureMemory();
  CaptureMemory(const CaptureMemory&) = delete;
  CaptureMemory& operator=(const CaptureMemory&) = delete;

  /// Memory that was there before: the graph reads it in every replay, so it must stay. Once, at the end.
  [[nodiscard]] std::vector<c10::Storage> take_given();
  /// Memory that operations have made, and that still has an owner.
  [[nodiscard]] std::vector<WeakMemory> made() const;

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& operation);
  static void end(const at::RecordFunction& operation, at::ObserverContext* context);

  c10::DeviceType device_;
  std::function<bool(const c10::StorageImpl*)> is_kept_;
  CaptureMemory* outer_;
  at::CallbackHandle handle_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> given_;
  std::unordered_map<const c10::StorageImpl*, WeakMemory> made_;  // which keeps their addresses their own
};

/// Gives what is still owned memory of its own, with the same data, so that later replays do not change it. Returns the
/// memory that it had, which the graph goes on to use.
std::vector<c10::DataPtr> move_out(const std::vector<WeakMemory>& made);

/// While it lives, notes whether an operation of this thread takes a tensor with such memory.
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
  UseWatch* outer_;
  at::CallbackHandle handle_;
  std::string found_;
};

}  // namespace stagecraft
