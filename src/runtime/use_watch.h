#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <string>
#include <vector>

#include "held_memory.h"

namespace stagecraft {

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
