#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "device_times.h"
#include "graph_device.h"
#include "stagecraft/transport/message.h"

namespace stagecraft {

/// A message as a captured step knows it: views of memory that graphs read or write.
struct CapturedMessage {
  Tag tag;
  bool is_sent = false;
  std::vector<at::Tensor> tensors;    ///< Undefined where the message holds nothing. They keep no memory alive.
  std::vector<bool> needs_gradients;  ///< By tensor.
  std::string header;
  std::shared_ptr<const std::string> form;
};

/// A captured step: the computations between two messages are one graph. All in the order of the program.
struct CapturedPieces {
  std::vector<std::vector<DeviceTimes::Mark>> marks;  ///< By graph, if the timeline is recorded.
  std::vector<std::unique_ptr<DeviceGraph>> graphs;   // after the events that are in them
  std::vector<CapturedMessage> messages;

  /// What is in the messages, apart from numbers in their tensors: what a rank sends must be what another receives.
  [[nodiscard]] std::string forms() const;
};

/// A message that is not what its receiver expects, by its tag; empty if there is none. `forms`: those of every rank.
std::string first_difference(const std::vector<std::string>& forms);

}  // namespace stagecraft
