#pragma once

#include <c10/core/Device.h>

#include <memory>

namespace stagecraft {

/// Sets up a thread to compute for a rank, and restores it on destruction: the rank's device and, where it has streams,
/// a stream of the rank's own; the number of threads inside one operation; autograd that stays on this thread; and
/// LibTorch's warnings in one line. `run_ranks` and `launch` make it; code that builds a World itself makes it first.
class RankScope {
 public:
  /// A device without an index, such as "cuda", means the current one.
  RankScope(c10::Device device, int threads);
  ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

  /// Waits until the device has done what the rank has issued. Throws the device's error, such as a failed assertion in
  /// a kernel, which a program that reads nothing back would not meet.
  void finish();

  /// The device, with its index.
  [[nodiscard]] c10::Device device() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft
