#pragma once

#include <functional>
#include <optional>
#include <string>

/// What a launcher of processes tells each of them by environment variables.
namespace stagecraft {

struct Launched {
  std::string by;  ///< "torchrun", "Slurm" or "mpirun"
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;   ///< Among the processes of this host.
  std::string missing;  ///< The variable that would say `local_rank`; empty if it does.
  int local_ranks = 1;
  std::string host;  ///< Of rank 0, or of the launcher's store.
  int port = 0;
  bool has_store = false;  ///< The launcher runs the store itself; otherwise rank 0 does.
  std::string job;         ///< Tells it from others that use the same store; not from an earlier start of its own.
};

/// Looks up a variable; null: not set.
using Variables = std::function<const char*(const char*)>;

/// Nothing when no launcher has started this process. Throws InvalidArgument for variables that contradict each other,
/// do not say where rank 0 is, or are some of torchrun's alone.
std::optional<Launched> launched_by(const Variables& variables);

/// Called by a rank that takes one of so many devices of its host by its local rank. Throws InvalidArgument when the
/// launcher has not said that one, and all ranks would take the same device.
void check_can_choose(const Launched& launched, int devices);

/// Before CUDA begins in a process that is one of several ranks: operations that wait for another rank must hold up
/// neither others, for which the device has 8 queues by default, nor the loading of kernels, which may wait for all
/// that runs. So it asks for 32 queues, and for all kernels at once. Variables that are set already stay.
void prepare_cuda();

/// How many ranks mpirun, or srun for MPI, has started, as it tells each of them; 0 if it does not, the least if
/// several do. Asked for before MPI starts, which may set these variables itself.
int ranks_of_mpirun(const Variables& variables);

/// Called when MPI has started. Throws InvalidArgument when this process is alone there, although mpirun has started
/// several: that was another MPI's, and each of them would do all of the work.
void check_not_alone(int ranks_of_mpirun, int ranks);

/// The first host of a list as Slurm writes it: "node[07-09,12],other" begins with "node07".
std::string first_host(const std::string& list);

}  // namespace stagecraft
