#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "stagecraft/transport/transport.h"

namespace c10d {
class ProcessGroup;
}

/// Ranks of a c10d process group that the user has made, such as torch.distributed makes it with Gloo.
namespace stagecraft {

/// This rank's end of a world of all ranks of a process group. Messages have tags of their own: what else the program
/// sends, receives and reduces with the group is not disturbed. Keeps the group alive while another rank may still send
/// to this one.
///
/// When the connection to a rank breaks without a farewell, its process is lost: all waits end with AbortedError.
class C10dConnection {
 public:
  struct Options {
    /// Where the rank computes; received tensors are moved there. None leaves them on the host.
    std::optional<at::Device> device = {};
    /// What the rank is doing, for errors; called from other threads.
    std::function<std::string()> activity = {};
    /// Called several times a second by threads that wait for a message. What it throws ends the wait.
    std::function<void()> while_waiting = {};
  };

  /// All ranks of the group call it, in the same order if there are several. Throws TransportError when the group
  /// cannot send tensors of the host, or the ranks run different versions of Stagecraft.
  C10dConnection(c10::intrusive_ptr<c10d::ProcessGroup> group, Options options);
  /// Like `leave`, without a failure.
  ~C10dConnection();
  C10dConnection(const C10dConnection&) = delete;
  C10dConnection& operator=(const C10dConnection&) = delete;

  [[nodiscard]] std::shared_ptr<Transport> transport() const { return transport_; }

  /// Called when this rank's program has ended; `failure` is its error, if any. Tells the others, and waits until what
  /// it has sent is gone, `patience` at most. Threads that receive stay until the other ranks have left too.
  void leave(const std::optional<std::string>& failure, Timeout patience);
  /// Whether all other ranks have left too, or are lost, `patience` from now at the latest.
  bool wait_for_others(Timeout patience);

 private:
  class Implementation;
  std::shared_ptr<Transport> transport_;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft
