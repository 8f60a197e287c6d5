#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "held_memory.h"

namespace stagecraft {

/// Finds the memory that a captured step shares with code that it does not know, such as a mask that a module keeps for
/// later. Watches the operations of this thread while a step is captured, and of the backwards that it runs, which
/// LibTorch has other threads for.
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
  /// replay would not bring their gradients out. What compiled code hands to the next stage is a leaf too, from where
  /// no operation tells, but nobody has it any more.
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

}  // namespace stagecraft
