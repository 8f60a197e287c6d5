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

/// Whether a launcher of MPI has started this process as one of several. Not so for workers of torchrun, whoever has
/// started torchrun.
bool is_started_by_mpi();

/// This process as a rank of an MPI world. There is one at a time, and MPI starts only once in a process.
///
/// Every rank learns within the timeout when the process of another has ended, stopped or lost its network.
class MpiProcess {
 public:
  /// Starts MPI. Throws TransportError without MPI, or when the processes run different versions of Stagecraft; ends
  /// the process with a message when the others do not start within the timeout.
  explicit MpiProcess(Timeout timeout);
  ~MpiProcess();
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;

  [[nodiscard]] RankId rank() const;
  [[nodiscard]] int ranks() const;
  /// This rank's number among the ranks on this host.
  [[nodiscard]] int local_rank() const;
  /// Cores that the launcher lets this process use, divided by the number of processes that share them, rounded down: 0
  /// when there are more processes than cores.
  [[nodiscard]] int cores() const;

  /// Called once. `device`: where the rank computes; received tensors are moved there. `activity` says what the rank is
  /// doing, for errors; it is called from other threads.
  std::shared_ptr<Transport> connect(std::optional<at::Device> device, std::function<std::string()> activity);

  /// What the rank waits for on this transport, and who is lost there, is said too when the launcher ends it.
  void uses_too(const std::shared_ptr<Transport>& transport);
  /// Called when the rank's failure is printed, unless `finish` follows at once: then nothing else is said for it.
  void set_reported();

  /// Called when this rank's program has ended, or has failed before `connect`; `failure` is its error, if any. Tells
  /// the others, waits until they have ended too, and stops MPI. Returns the exit code: 0 when no rank failed. Ends the
  /// process by MPI_Abort when the process of a rank is lost, or when this rank failed and the others have not ended
  /// within 2 s.
  int finish(const std::optional<std::string>& failure);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace stagecraft
