#pragma once

#include <functional>
#include <memory>

#include "stagecraft/transport/transport.h"

/// Ranks as threads of one process. A tensor is handed over, not copied, where both ranks compute on one device;
/// between two devices the receiver's stream copies it.
namespace stagecraft {

class LocalFabric {
 public:
  explicit LocalFabric(int ranks);
  ~LocalFabric();
  LocalFabric(const LocalFabric&) = delete;
  LocalFabric& operator=(const LocalFabric&) = delete;

  /// The end of one rank, called by its thread; it must not outlive the fabric. `device`: where the rank computes, and
  /// wants what it receives; none leaves tensors where they are. `activity`: what the rank is doing, for other ranks
  /// that wait for it (from their threads).
  std::unique_ptr<Transport> connect(RankId rank, std::optional<at::Device> device = std::nullopt,
                                     std::function<std::string()> activity = {});

  /// The rank is gone, for good: whoever waits for it, now or later, gets AbortedError with this message.
  void depart(RankId rank, const std::string& message);

 private:
  class End;
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace stagecraft
