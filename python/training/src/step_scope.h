#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/Exceptions.h>

namespace stagecraft::python {

/// Sets up this thread for a step, for as long as it lives: the device of the world is the current one, autograd stays
/// on this thread, and warnings of LibTorch are Python's.
class StepScope {
 public:
  explicit StepScope(c10::Device device) : had_threads_(state().get_multithreading_enabled()) {
    if (!device.is_cpu()) device_.reset_device(device);
    state().set_multithreading_enabled(false);
  }
  ~StepScope() noexcept(false) { state().set_multithreading_enabled(had_threads_); }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;
  void set_failed() { warnings_.set_in_exception(); }

 private:
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }

  c10::OptionalDeviceGuard device_;
  bool had_threads_;
  torch::PyWarningHandler warnings_;
};

}  // namespace stagecraft::python
