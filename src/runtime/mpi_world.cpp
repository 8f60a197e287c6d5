// This process as one rank, started by an MPI launcher.

#include <iostream>

#include "stagecraft/runtime/rank_scope.h"
#include "stagecraft/transport/mpi.h"
#include "worlds.h"

namespace stagecraft {
namespace {

int run_under_mpi(const LaunchOptions& options, const std::function<void(World&)>& program) {
  MpiProcess process(options.timeout);
  std::optional<std::string> failure;
  int exit_code = 1;
  try {
    const RankScope scope(device_of(options, process.rank(), process.local_rank()),
                          threads_of(options, process.cores()));
    const auto activity = std::make_shared<Activity>();
    World world(process.connect(scope.device(), [activity] { return activity->text(); }), scope.device(),
                options.timeout, options.replicas, activity);
    program(world);
  } catch (...) {
    failure = failure_text(std::current_exception());
    exit_code = exit_code_of(std::current_exception());
    const std::string who = "rank " + std::to_string(process.rank().value) + ": ";
    std::cerr << (failure->starts_with(who) ? *failure + "\n" : who + *failure + "\n") << std::flush;
  }
  return process.finish(failure) == 0 ? 0 : exit_code;
}

}  // namespace

WorldFactory mpi_world() { return {"mpi", is_started_by_mpi, run_under_mpi}; }

}  // namespace stagecraft
