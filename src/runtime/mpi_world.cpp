// This process as one rank, started by an MPI launcher.

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "launched.h"
#include "stagecraft/core/host.h"
#include "stagecraft/runtime/rank_scope.h"
#include "stagecraft/transport/mpi.h"
#include "stagecraft/transport/sockets.h"
#include "stagecraft/transport/streams.h"
#include "worlds.h"

namespace stagecraft {
namespace {

std::unique_ptr<Group> group_of_all(Transport& transport, Timeout timeout) {
  std::vector<RankId> all;
  for (int r = 0; r < transport.ranks(); ++r) all.emplace_back(r);
  return transport.make_group(all, timeout, "all processes");
}

/// Whether all ranks compute on GPUs and have NCCL, each with a GPU of its own, unless they may share one. They all
/// call it.
bool can_use_nccl(const MpiProcess& process, Transport& transport, const at::Device& device, Timeout timeout) {
  if (process.ranks() == 1) return false;
  const char* sharing = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool may_share = sharing != nullptr && std::atoi(sharing) != 0;
  std::string own;  // empty: it cannot
  if (uses_nccl(device)) {
    own = may_share ? "rank " + std::to_string(process.rank().value) : running_host() + " " + place_of_gpu(device);
  }
  std::vector<std::string> all = group_of_all(transport, timeout)->all_gather(own);
  std::sort(all.begin(), all.end());
  if (all.front().empty()) return false;
  if (std::adjacent_find(all.begin(), all.end()) == all.end()) return true;
  if (process.rank().value == 0) {
    std::cerr << "stagecraft: several ranks share a GPU, so that messages go through the memory of the host: start one "
                 "rank per GPU, or set NCCL_MULTI_RANK_GPU_ENABLE=1 if NCCL is 2.30 or later\n";
  }
  return false;
}

int run_under_mpi(const LaunchOptions& options, const std::function<void(World&)>& program) {
  prepare_cuda();
  const int told = ranks_of_mpirun([](const char* name) -> const char* { return std::getenv(name); });
  MpiProcess process(options.timeout);
  std::optional<std::string> failure;
  int exit_code = 1;
  bool is_well = true;  // what NCCL has moved
  const auto note_failure = [&] {
    failure = failure_text(std::current_exception());
    exit_code = exit_code_of(std::current_exception());
    const std::string who = "rank " + std::to_string(process.rank().value) + ": ";
    std::cerr << (failure->starts_with(who) ? *failure + "\n" : who + *failure + "\n") << std::flush;
    process.set_reported();
  };
  try {
    check_not_alone(told, process.ranks());
    RankScope scope(device_of(options, process.rank(), process.local_rank()), threads_of(options, process.cores()));
    const auto activity = std::make_shared<Activity>();
    const auto doing = [activity] { return activity->text(); };
    const std::shared_ptr<Transport> mpi = process.connect(scope.device(), doing);
    std::optional<SocketConnection> nccl;
    if (can_use_nccl(process, *mpi, scope.device(), options.timeout)) {
      const auto everyone = group_of_all(*mpi, options.timeout);
      nccl.emplace(
          process.rank(), process.ranks(), [&](const std::string& own) { return everyone->all_gather(own); },
          SocketConnection::Options{scope.device(), doing, {}, options.timeout});
      process.uses_too(nccl->transport());
    }
    try {
      World world(nccl ? nccl->transport() : mpi, scope.device(), options.timeout, options.replicas, activity);
      program(world);
      scope.finish();
    } catch (...) {
      note_failure();  // first: the other ranks' ends, and the launcher's signal, come meanwhile
    }
    if (nccl) is_well = nccl->finish(failure);
  } catch (...) {
    note_failure();
  }
  return process.finish(failure) == 0 && is_well ? 0 : exit_code;
}

}  // namespace

/// Without MPI, processes that mpirun has started find each other by its variables.
WorldFactory mpi_world() {
  return {"mpi", [] { return has_mpi() && is_started_by_mpi(); }, run_under_mpi};
}

}  // namespace stagecraft
