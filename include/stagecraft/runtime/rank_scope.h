#pragma once

#include <c10/core/Device.h>

#include <memory>

namespace stagecraft {

/// What a thread needs before it computes for a rank, while the scope lives: the rank's device and, where it has
/// streams, one of the rank's own; a number of threads inside one operation; a backward that stays on this thread; and
/// warnings of LibTorch in one line. `run_ranks` and `launch` make it; whoever builds a World by himself makes it
/// first.
class RankScope {
 public:
  /// "cuda" is the device that is current.
  RankScope(c10::Device device, int threads);
  ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

  /// With its index.
  [[nodiscard]] c10::Device device() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft
