#pragma once

#include <functional>

#include "stagecraft/runtime/world.h"

/// Starting a program on all its ranks.
namespace stagecraft {

enum class WorldKind {
  kAuto,     ///< Processes when an MPI launcher has started this one, else threads.
  kThreads,  ///< All ranks in this process.
  kMpi,      ///< This process is one rank.
};

struct LaunchOptions {
  /// Of one pipeline, as threads of this process; under MPI there are as many processes as the launcher has started.
  int ranks = 1;
  /// Pipelines side by side, each on its own share of the batch: there are ranks * replicas ranks in all. Under MPI
  /// the processes are divided among them.
  int replicas = 1;
  /// The flag --stagecraft-world=threads or --stagecraft-world=mpi on the command line overrides it.
  WorldKind world = WorldKind::kAuto;
  /// Threads inside one operation, per rank; 0: the cores divided by the ranks. Sums may differ in their last bit
  /// between different numbers.
  int threads_per_rank = 0;
  /// Where ranks compute. Of several devices each rank takes the one of its place among the ranks on its host, round
  /// robin.
  at::DeviceType device_type = at::kCPU;
  /// Where rank r computes, instead.
  std::function<at::Device(RankId)> device = {};
  /// The longest that a rank waits for another.
  Timeout timeout = std::chrono::minutes(5);
  /// The program's, before the message when `launch` prints a failure. Processes say their rank instead.
  std::string name = {};
};

/// Runs `program` once per rank of every replica, each in a thread of its own with its share of the cores, and waits
/// for all. The first failure of a rank ends the waiting of the others and is thrown when all have ended.
void run_ranks(const LaunchOptions& options, const std::function<void(World&)>& program);

/// The body of `main`: runs the program on the ranks of the world that `options` and the command line ask for, and
/// prints a failure to stderr. Returns the exit code: 0, or after a failure on any rank 2 if it was of what the program
/// was given (InvalidArgument, FileError), else 1; a process that another one's failure has ended returns 1. The
/// command line keeps its flags; those that begin with --stagecraft- are for this function.
int launch(int argc, char** argv, const LaunchOptions& options, const std::function<void(World&)>& program);

}  // namespace stagecraft
