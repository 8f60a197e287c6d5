#pragma once

#include <c10/util/intrusive_ptr.h>

#include "stagecraft/transport/sockets.h"

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

/// Ranks that find each other by LibTorch's c10d.
namespace stagecraft {

/// The ranks of a process group that the user has made, such as torch.distributed makes it with Gloo or NCCL. They use
/// it only to find each other: what the program sends, receives and reduces with the group is not disturbed. All ranks
/// of the group call it, in the same order if there are several.
SocketConnection::Exchange exchange_by(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                       const std::optional<at::Device>& device);

/// Ranks that know a store, such as that of torchrun, which may still hold what an earlier start of the same ranks has
/// left. `name` tells one world from another.
SocketConnection::Exchange exchange_by(c10::intrusive_ptr<c10d::Store> store, RankId rank, int ranks, std::string name,
                                       Timeout timeout);

}  // namespace stagecraft
