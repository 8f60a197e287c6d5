#pragma once

#include "stagecraft/transport/transport.h"
#include "watch.h"

namespace stagecraft::nccl {

/// After a failed step: brings all ranks to the same collective again. A failure may have ended the round before a
/// collective (see NcclGroup) for one member when others had come through it: their devices wait for it, and their
/// hosts do when they next ask the device for a number. Whoever has left a collective out issues it now, with a result
/// that nobody uses.
///
/// Called by all ranks of the world, while no thread uses a group. Throws TransportError where a collective cannot be
/// made up for, and like `Transport::receive`.
void recover(Transport& transport, Watch& watch, Timeout timeout);

}  // namespace stagecraft::nccl
