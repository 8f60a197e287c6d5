#pragma once

#include <functional>
#include <memory>

#include "stagecraft/transport/transport.h"

/// Ranks as threads of one process. A tensor is handed over, not copied, where both ranks compute on one device;
/// between two devices the receiver copies it.
namespace stagecraft {

class LocalFabric {
 public:
  explicit LocalFabric(int ranks);
  ~LocalFabric();
  LocalFabric(const LocalFabric&) = delete;
  LocalFabric& operator=(const LocalFabric&) = delete;

  /// The transport of one rank, for its threads. `device`: where the rank computes; received tensors are moved there,
  /// except those of `send_lasting` that are on the host.
  /// None leaves them where they are. `activity`: see Transport.
  std::unique_ptr<Transport> connect(RankId rank, std::optional<at::Device> device = std::nullopt,
                                     std::function<std::string()> activity = {});
  /// Only the channel, to build another transport on.
  std::unique_ptr<Channel> channel(RankId rank, std::optional<at::Device> device = std::nullopt);

 private:
  class End;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace stagecraft
