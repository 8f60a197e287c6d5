// Ranks as threads of this process.

#include <algorithm>
#include <optional>
#include <thread>

#include "safe_operators.h"
#include "stagecraft/core/error.h"
#include "stagecraft/runtime/rank_scope.h"
#include "stagecraft/stage/random.h"
#include "stagecraft/transport/local.h"
#include "worlds.h"

namespace stagecraft {
namespace {

bool is_aborted(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const AbortedError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

void run_ranks(const LaunchOptions& options, const std::function<void(World&)>& program) {
  if (options.ranks < 1 || options.replicas < 1) {
    throw InvalidArgument("a world has at least 1 rank and 1 replica, got " + std::to_string(options.ranks) + " and " +
                          std::to_string(options.replicas));
  }
  const int ranks = options.ranks * options.replicas;
  make_operators_safe(ranks);
  LocalFabric fabric(ranks);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const RankId rank(r);
      const auto activity = std::make_shared<Activity>();
      std::shared_ptr<Transport> transport;
      const auto connect = [&](std::optional<at::Device> device) {
        transport = fabric.connect(rank, device, [activity] { return activity->text(); });
      };
      try {
        RankScope scope(device_of(options, rank, r),
                        threads_of(options, static_cast<int>(std::thread::hardware_concurrency()) / ranks));
        std::optional<RandomTurns> turns;
        if (ranks > 1 && !scope.device().is_cpu()) turns.emplace();
        connect(scope.device());
        World world(transport, scope.device(), options.timeout, options.replicas, activity);
        program(world);
        scope.finish();
      } catch (...) {
        failures[rank.index()] = std::current_exception();
      }
      if (!transport) connect(std::nullopt);  // to announce the failure
      const std::exception_ptr failure = failures[rank.index()];
      transport->depart(failure ? std::optional(failure_text(failure)) : std::nullopt);
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Prefer the failure of a rank that failed by itself over one that was aborted because of it.
  const auto own = std::find_if(failures.begin(), failures.end(),
                                [](const std::exception_ptr& failure) { return failure && !is_aborted(failure); });
  if (own != failures.end()) std::rethrow_exception(*own);
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

WorldFactory thread_world() {
  return {"threads", [] { return false; },
          [](const LaunchOptions& options, const std::function<void(World&)>& program) {
            run_ranks(options, program);
            return 0;
          }};
}

}  // namespace stagecraft
