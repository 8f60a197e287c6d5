#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/transport/transport.h"

/// Ranks as processes that talk by TCP; tensors of a GPU go from one to another by NCCL.
namespace stagecraft {

/// Whether a process of this device sends tensors by NCCL: it can load it, and the device is a GPU of CUDA.
bool uses_nccl(const at::Device& device);

/// This rank's end of a world of processes.
///
/// When the connection to a rank breaks without a farewell, its process is lost: all waits end with AbortedError. So it
/// is when an operation of NCCL does not end within the limit.
class SocketConnection {
 public:
  /// Gives every rank the texts of all ranks, by rank. Called once by each, for what they need to find each other.
  using Exchange = std::function<std::vector<std::string>(const std::string& own)>;

  struct Options {
    /// Where the rank computes; received tensors are moved there. None leaves them on the host.
    std::optional<at::Device> device = {};
    /// What the rank is doing, for errors; called from other threads.
    std::function<std::string()> activity = {};
    /// Called several times a second by threads that wait for a message. What it throws ends the wait.
    std::function<void()> while_waiting = {};
    /// The longest that ranks wait for each other to connect, or for an operation of NCCL to end.
    Timeout limit = std::chrono::minutes(5);
    /// Puts something between the transport and the connection, such as a channel that records or delays. None:
    /// nothing.
    std::function<std::unique_ptr<Channel>(std::unique_ptr<Channel>)> wrap = {};
  };

  /// All ranks make it. Throws TransportError when one cannot be reached, or when they run different versions of
  /// Stagecraft.
  SocketConnection(RankId rank, int ranks, const Exchange& exchange, Options options);
  /// Like `leave`, without a failure.
  ~SocketConnection();
  SocketConnection(const SocketConnection&) = delete;
  SocketConnection& operator=(const SocketConnection&) = delete;

  [[nodiscard]] std::shared_ptr<Transport> transport() const { return transport_; }

  /// Called when this rank's program has ended; `failure` is its error, if any. Tells the others, and waits until what
  /// it has sent is gone, `patience` at most. Without a failure of any rank, waits before and after until NCCL has
  /// moved what is on its way to or from this rank, up to Options::limit: other devices may be behind. Threads that
  /// receive stay until the other ranks have left too.
  void leave(const std::optional<std::string>& failure, Timeout patience);
  /// Leaves, and waits until the other ranks have left too: half a second at most when this one has failed. A rank that
  /// does not answer for Options::limit, 5 seconds at least, is lost. Returns whether no rank has failed.
  bool finish(const std::optional<std::string>& failure);
  /// What has become of a rank whose process is gone or does not answer, if there is one.
  [[nodiscard]] std::optional<std::string> lost() const;
  /// Whether all other ranks have left too, or are lost, `patience` from now at the latest.
  bool wait_for_others(Timeout patience);

 private:
  class Implementation;
  std::shared_ptr<Transport> transport_;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft
