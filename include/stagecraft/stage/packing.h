#pragma once

#include "stagecraft/stage/value.h"
#include "stagecraft/transport/transport.h"

/// Values as messages.
namespace stagecraft {

/// A message with the tensors of all trees, one after the other; the header holds everything else.
Message pack(const ValueList& values);
/// Throws TransportError when the header is not one that `pack` writes.
ValueList unpack(Message message);

}  // namespace stagecraft
