// This process as one rank, started by torchrun, Slurm or another launcher that says by variables who is who.

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "launched.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/text.h"
#include "stagecraft/runtime/rank_scope.h"
#include "stagecraft/transport/c10d.h"
#include "worlds.h"

namespace stagecraft {
namespace {

std::optional<Launched> own_launch() {
  return launched_by([](const char* name) -> const char* { return std::getenv(name); });
}

c10::intrusive_ptr<::c10d::Store> new_store(const Launched& launched, Timeout timeout) {
  ::c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launched.port);
  options.isServer = launched.rank == 0 && !launched.has_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return c10::make_intrusive<::c10d::TCPStore>(launched.host, options);
  } catch (const std::exception& error) {
    const std::string text = failure_text(std::current_exception());
    throw TransportError("rank " + std::to_string(launched.rank) + " cannot " +
                             (options.isServer ? "open port " + std::to_string(launched.port) + " for the other ranks"
                                               : "reach " + launched.host + ":" + std::to_string(launched.port)) +
                             " (" + first_line(text) +
                             "): MASTER_ADDR and MASTER_PORT must name the host of rank 0 and a free port of it",
                         RankId(0));
  }
}

/// Kept until the process ends: a rank that is through with one world may already look for the next one when rank 0
/// still has to leave the first, and must not meet a store that goes with it.
c10::intrusive_ptr<::c10d::Store> store_of(const Launched& launched, Timeout timeout) {
  struct Known {
    std::mutex mutex;
    std::map<std::tuple<std::string, int, bool>, c10::intrusive_ptr<::c10d::Store>> stores;  // by place and role
  };
  static Known& known = *new Known;  // never destroyed: its threads may outlive what they use at the end of the process
  const std::lock_guard lock(known.mutex);
  auto& store = known.stores[{launched.host, launched.port, launched.rank == 0}];
  if (!store) store = new_store(launched, timeout);
  return store;
}

int run_as_process(const LaunchOptions& options, const std::function<void(World&)>& program) {
  const std::optional<Launched> launched = own_launch();
  if (!launched) {
    throw InvalidArgument(
        "the world 'processes' is for programs that a launcher starts, such as torchrun: no launcher has "
        "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
  }
  prepare_cuda();
  static std::atomic<int> worlds = 0;
  const int world_number = worlds++;  // counted also where it fails: the store knows the worlds by it
  const RankId rank(launched->rank);
  const std::string who = "rank " + std::to_string(rank.value) + ": ";
  std::optional<std::string> failure;
  int exit_code = 1;
  const auto note_failure = [&] {
    failure = failure_text(std::current_exception());
    exit_code = exit_code_of(std::current_exception());
    std::cerr << (failure->starts_with(who) ? *failure + "\n" : who + *failure + "\n") << std::flush;
  };
  try {
    const int cores = static_cast<int>(std::thread::hardware_concurrency()) / launched->local_ranks;
    if (!options.device) check_can_choose(*launched, device_count(options.device_type));
    RankScope scope(device_of(options, rank, launched->local_rank), threads_of(options, cores));
    const auto activity = std::make_shared<Activity>();
    const auto store = store_of(*launched, options.timeout);
    const std::string name = launched->job + "/" + std::to_string(world_number);
    SocketConnection connection(rank, launched->ranks, exchange_by(store, rank, launched->ranks, name, options.timeout),
                                {scope.device(), [activity] { return activity->text(); }, {}, options.timeout});
    try {
      World world(connection.transport(), scope.device(), options.timeout, options.replicas, activity);
      program(world);
      scope.finish();
    } catch (...) {
      note_failure();
    }
    const bool is_well = connection.finish(failure);
    if (!failure && connection.lost()) std::cerr << who + *connection.lost() + "\n" << std::flush;
    return is_well ? 0 : exit_code;
  } catch (...) {
    note_failure();
    return exit_code;
  }
}

}  // namespace

WorldFactory process_world() {
  return {"processes", [] { return own_launch().has_value(); }, run_as_process};
}

}  // namespace stagecraft
