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

  /// The end of one rank, used by its threads. `device`: where the rank computes, and wants what it receives; none
  /// leaves tensors where they are. `activity`: see Transport.
  std::unique_ptr<Transport> connect(RankId rank, std::optional<at::Device> device = std::nullopt,
                                     std::function<std::string()> activity = {});
  /// The channel alone, to build another transport upon.
  std::unique_ptr<Channel> channel(RankId rank, std::optional<at::Device> device = std::nullopt);

 private:
  class End;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace stagecraft
