#pragma once

#include <exception>

#include "envelope.h"
#include "stagecraft/core/error.h"

namespace stagecraft::wire {

/// Thrown when this rank has no room for a message that another has sent; its `peer` is the sender.
class OutOfMemory : public TransportError {
 public:
  /// `form`: the tensor there is no room for; null: the header of the message. `reason`: what the allocator said.
  OutOfMemory(RankId own, RankId from, const Envelope& envelope, const TensorForm* form, const std::exception& reason);
};

}  // namespace stagecraft::wire
