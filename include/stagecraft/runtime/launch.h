#pragma once

#include <functional>

#include "stagecraft/runtime/world.h"

/// Starting a program on all its ranks.
namespace stagecraft {

struct LaunchOptions {
  /// Ranks of one pipeline, as threads of this process. Ignored where ranks are processes: their launcher decides how
  /// many there are.
  int ranks = 1;
  /// Pipelines side by side, each on its own share of the batch: there are ranks * replicas ranks in all. Ranks that
  /// are processes are divided among them.
  int replicas = 1;
  /// "threads": all ranks in this process. "mpi": this process is one rank, started by mpirun. "processes": it is one
  /// rank, started by torchrun, Slurm or anything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Or the name
  /// of a registered world. Ranks that are processes and compute on CUDA send their tensors by NCCL, if there is one.
  /// Empty: the world of the launcher that started this process, otherwise threads. The flag --stagecraft-world=NAME on
  /// the command line overrides it.
  std::string world = {};
  /// Threads inside one operation, per rank; 0: the cores divided by the ranks. Sums may differ in their last bit
  /// between different numbers.
  int threads_per_rank = 0;
  /// The type of device that ranks compute on. With several devices, the ranks of a host take them in turn.
  at::DeviceType device_type = at::kCPU;
  /// The device of each rank; overrides `device_type`.
  std::function<at::Device(RankId)> device = {};
  /// The longest that a rank waits for another, and that one which is waited for may stay silent. A rank whose program
  /// has ended waits for the others' as long as these answer.
  Timeout timeout = std::chrono::minutes(5);
  /// The program's name, put before the message when `launch` prints a failure. Processes print their rank instead.
  std::string name = {};
};

/// Runs `program` once per rank of every replica, each in a thread of its own with its share of the cores, and waits
/// for all. The first failure of a rank ends the waiting of the others and is thrown when all have ended.
void run_ranks(const LaunchOptions& options, const std::function<void(World&)>& program);

/// The body of `main`: runs the program on the ranks of the world that `options` and the command line ask for, and
/// prints a failure to stderr. Returns the exit code: 0; 2 for InvalidArgument or FileError on any rank, otherwise 1; a
/// process that ends because another one failed returns 1. The command line keeps its flags; those that begin with
/// --stagecraft- are for this function.
int launch(int argc, char** argv, const LaunchOptions& options, const std::function<void(World&)>& program);

/// A kind of world: how the ranks of a program are started.
struct WorldFactory {
  std::string name;
  /// Whether a launcher of this kind has started this process.
  std::function<bool()> is_started;
  /// Runs the program on the ranks that are in this process (each within a RankScope), and returns the exit code.
  std::function<int(const LaunchOptions& options, const std::function<void(World&)>& program)> run;
};
/// Makes a world known to `launch`. Throws InvalidArgument for a name that is taken.
void register_world(WorldFactory factory);

}  // namespace stagecraft
