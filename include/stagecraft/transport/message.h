#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/core/ids.h"

/// What travels between ranks.
namespace stagecraft {

using Timeout = std::chrono::milliseconds;

enum class MessageKind : std::uint8_t { kForward, kBackward, kCollective };

/// Identifies a message: two in flight between the same ranks never have the same tag.
struct Tag {
  MessageKind kind = MessageKind::kForward;
  StageId from;             ///< For a collective: its group.
  StageId to;               ///< For a collective: the round.
  MicrobatchId microbatch;  ///< For a collective: its number in the group.

  static Tag collective(std::int32_t group, int round, std::int32_t number) {
    return {MessageKind::kCollective, StageId(group), StageId(round), MicrobatchId(number)};
  }

  auto operator<=>(const Tag&) const = default;
};
/// "the activation of microbatch 3 from stage 1 to stage 2".
std::string to_text(const Tag& tag);

/// Names a message of a collective in errors. Owns nothing: the views must stay valid during the call.
struct Purpose {
  std::string_view what;   ///< "the average of the gradients of stage 3"; if empty, the other two are used.
  std::string_view call;   ///< "all_gather"
  std::string_view group;  ///< "world.peers()"
};
std::string to_text(const Purpose& purpose);

/// `header` and `form` are for whoever sends and receives.
struct Message {
  /// An undefined tensor is a place that holds nothing.
  std::vector<at::Tensor> tensors;
  std::string header = {};
  /// What the tensors are parts of. Messages that look alike share one: a transport sends it once, and may take two
  /// that are the same object for equal.
  std::shared_ptr<const std::string> form = {};

  /// Of all tensors.
  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const at::Tensor& tensor : tensors) sum += tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
    return sum;
  }
};

/// Why a step failed, and on which rank of the world.
struct Failure {
  RankId rank;
  std::string message;
};

}  // namespace stagecraft
