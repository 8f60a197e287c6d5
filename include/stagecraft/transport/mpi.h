#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "stagecraft/transport/transport.h"

/// Ranks as processes, started by mpirun or a cluster's own launcher.
namespace stagecraft {

/// Whether Stagecraft was built with MPI.
bool has_mpi();

/// Whether a launcher has started this process as one of several.
bool is_started_by_mpi();

/// This process as a rank of an MPI world. There is one at a time, and MPI starts only once in a process.
///
/// It tells every rank when the process of another has ended, stopped or lost its network, within the timeout.
class MpiProcess {
 public:
  /// Starts MPI. Throws TransportError without MPI, or when the processes are not of the same Stagecraft; ends the
  /// process with a message when the others do not start within the timeout.
  explicit MpiProcess(Timeout timeout);
  ~MpiProcess();
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;

  [[nodiscard]] RankId rank() const;
  [[nodiscard]] int ranks() const;
  /// Among the ranks on this host.
  [[nodiscard]] int local_rank() const;
  [[nodiscard]] int local_ranks() const;
  /// The cores that the launcher lets this process use, divided by the processes that it lets use them too; 0 when they
  /// are fewer than these.
  [[nodiscard]] int cores() const;

  /// Called once. `device`: where the rank computes, and wants what it receives. `activity` says what the rank is doing
  /// when the launcher ends it (from another thread).
  std::shared_ptr<Transport> connect(std::optional<at::Device> device, std::function<std::string()> activity);

  /// This rank's program has ended, well or (with what it says) badly: tells the others, waits until they have ended
  /// too, stops MPI. Returns the exit code: 0 when all ranks ended well. When the process of a rank is lost, or a
  /// failed program is not heeded within the timeout, it says so and ends the process.
  int finish(const std::optional<std::string>& failure);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft
