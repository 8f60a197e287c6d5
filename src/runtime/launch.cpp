#include "stagecraft/runtime/launch.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <thread>

#include "safe_operators.h"
#include "stagecraft/core/error.h"
#include "stagecraft/transport/local.h"
#include "stagecraft/transport/mpi.h"
#include "stagecraft/transport/streams.h"
#include "warnings.h"

namespace stagecraft {
namespace {

/// A stage frees all of a microbatch's memory at once. Left to itself, glibc gives it back to the system there and
/// then, and the next microbatch pays for every page again. A user's own MALLOC_ settings stay.
void keep_freed_memory() {
#ifdef __GLIBC__
  static const bool once = [] {
    constexpr int kLargestHeapBlock = 32 << 20;  // glibc's limit
    constexpr int kKept = 1 << 30;
    if (std::getenv("MALLOC_MMAP_THRESHOLD_") == nullptr) mallopt(M_MMAP_THRESHOLD, kLargestHeapBlock);
    if (std::getenv("MALLOC_TRIM_THRESHOLD_") == nullptr) mallopt(M_TRIM_THRESHOLD, kKept);
    return true;
  }();
  (void)once;
#endif
}

/// On a device with streams: one of the rank's own, so that ranks that share a device do not wait for each other. It
/// begins after everything on the stream that was current before, and ends before what comes there next.
class OwnStream {
 public:
  explicit OwnStream(at::Device device) {
    if (device.is_cpu()) return;
    before_ = current_stream(device);
    own_ = new_stream(device);
    run_after(*own_, *before_);
    guard_.emplace(*own_);
  }
  ~OwnStream() {
    if (own_) run_after(*before_, *own_);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  std::optional<c10::Stream> before_;
  std::optional<c10::Stream> own_;
  std::optional<c10::StreamGuard> guard_;
};

/// A rank's thread: its device, its share of the cores, a backward that stays on this thread, and brief warnings.
class RankThread {
 public:
  RankThread(const LaunchOptions& options, at::Device device, int cores) : device_(device), stream_(device) {
    at::set_num_threads(options.threads_per_rank > 0 ? options.threads_per_rank : std::max(1, cores));
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }

 private:
  c10::OptionalDeviceGuard device_;
  OwnStream stream_;
  c10::WarningUtils::WarningHandlerGuard warnings_{&brief_warnings()};
};

/// "cuda" is the device that is current.
at::Device with_index(at::Device device) {
  if (device.is_cpu() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

at::Device device_of(const LaunchOptions& options, RankId rank, int place) {
  if (options.device) return with_index(options.device(rank));
  if (options.device_type == at::kCPU) return at::kCPU;
  const bool linked = c10::impl::hasDeviceGuardImpl(options.device_type);
  const int count = linked ? c10::impl::VirtualGuardImpl(options.device_type).deviceCount() : 0;
  if (count == 0) {
    throw InvalidArgument("there is no device of type " +
                          c10::DeviceTypeName(options.device_type, /*lower_case=*/true) +
                          " here: compute on the CPU, or start where there is one");
  }
  return {options.device_type, static_cast<at::DeviceIndex>(place % count)};
}

std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

template <typename... Errors>
bool is_any_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return ((dynamic_cast<const Errors*>(&error) != nullptr) || ...);
  } catch (...) {
    return false;
  }
}

/// What a program was given, or anything else.
int exit_code_of(const std::exception_ptr& failure) { return is_any_of<InvalidArgument, FileError>(failure) ? 2 : 1; }

}  // namespace

void run_ranks(const LaunchOptions& options, const std::function<void(World&)>& program) {
  keep_freed_memory();
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
        const at::Device device = device_of(options, rank, r);
        const RankThread setup(options, device, static_cast<int>(std::thread::hardware_concurrency()) / ranks);
        connect(device);
        World world(transport, device, options.timeout, options.replicas, activity);
        program(world);
      } catch (...) {
        failures[rank.index()] = std::current_exception();
      }
      if (!transport) connect(std::nullopt);  // to say why
      const std::exception_ptr failure = failures[rank.index()];
      transport->depart(failure ? std::optional(message_of(failure)) : std::nullopt);
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Of a rank that failed by itself rather than of one that was taken along.
  const auto own = std::find_if(failures.begin(), failures.end(), [](const std::exception_ptr& failure) {
    return failure && !is_any_of<AbortedError>(failure);
  });
  if (own != failures.end()) std::rethrow_exception(*own);
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

namespace {

int run_under_mpi(const LaunchOptions& options, const std::function<void(World&)>& program) {
  keep_freed_memory();
  MpiProcess process(options.timeout);
  std::optional<std::string> failure;
  int exit_code = 1;
  try {
    const at::Device device = device_of(options, process.rank(), process.local_rank());
    const RankThread setup(options, device, process.cores());
    const auto activity = std::make_shared<Activity>();
    World world(process.connect(device, [activity] { return activity->text(); }), device, options.timeout,
                options.replicas, activity);
    program(world);
  } catch (...) {
    failure = message_of(std::current_exception());
    exit_code = exit_code_of(std::current_exception());
    const std::string who = "rank " + std::to_string(process.rank().value) + ": ";
    std::cerr << (failure->starts_with(who) ? *failure + "\n" : who + *failure + "\n") << std::flush;
  }
  return process.finish(failure) == 0 ? 0 : exit_code;
}

WorldKind world_of(int argc, char** argv, const LaunchOptions& options) {
  constexpr std::string_view kFlag = "--stagecraft-world=";
  WorldKind kind = options.world;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with(kFlag)) continue;
    const std::string_view value = word.substr(kFlag.size());
    if (value == "threads") {
      kind = WorldKind::kThreads;
    } else if (value == "mpi") {
      kind = WorldKind::kMpi;
    } else {
      throw InvalidArgument("--stagecraft-world is threads or mpi, got '" + std::string(value) + "'");
    }
  }
  if (kind != WorldKind::kAuto) return kind;
  return is_started_by_mpi() ? WorldKind::kMpi : WorldKind::kThreads;
}

}  // namespace

int launch(int argc, char** argv, const LaunchOptions& options, const std::function<void(World&)>& program) {
  try {
    if (world_of(argc, argv, options) == WorldKind::kMpi) return run_under_mpi(options, program);
    run_ranks(options, program);
  } catch (...) {
    std::cerr << (options.name.empty() ? "" : options.name + ": ") + message_of(std::current_exception()) + "\n";
    return exit_code_of(std::current_exception());
  }
  return 0;
}

}  // namespace stagecraft
