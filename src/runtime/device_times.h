#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <functional>
#include <optional>
#include <vector>

#include "stagecraft/schedule/timeline.h"

namespace stagecraft {

/// When the actions of a step ran on a device with streams, which is later than the host has issued them. Every call
/// records an event on the current stream.
class DeviceTimes {
 public:
  explicit DeviceTimes(c10::Device device) : device_(device) {}

  /// Waits for the device; `now` then tells the time at which those of the device begin.
  void begin(const std::function<double()>& now);
  /// Around every action; `received` when the stream has waited for the action's message.
  void start();
  void received();
  void finish(const Action& action, std::int64_t bytes);
  /// Waits for the device, and returns the times of all actions since `begin`.
  Timeline end();

 private:
  struct Mark {
    Action action;
    std::int64_t bytes;
    c10::Event start;
    std::optional<c10::Event> received;
    c10::Event end;
  };
  [[nodiscard]] c10::Event recorded() const;

  c10::Device device_;
  double zero_ = 0;
  std::optional<c10::Event> first_;
  std::optional<c10::Event> start_;  // of the action that runs
  std::optional<c10::Event> received_;
  std::vector<Mark> marks_;
};

}  // namespace stagecraft
