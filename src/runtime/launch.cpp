#include "stagecraft/runtime/launch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iostream>
#include <mutex>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"
#include "worlds.h"

namespace stagecraft {

int device_count(at::DeviceType type) {
  const bool linked = type != at::kCPU && c10::impl::hasDeviceGuardImpl(type);
  return linked ? c10::impl::VirtualGuardImpl(type).deviceCount() : 0;
}

at::Device device_of(const LaunchOptions& options, RankId rank, int place) {
  if (options.device) return options.device(rank);
  if (options.device_type == at::kCPU) return at::kCPU;
  const int count = device_count(options.device_type);
  if (count == 0) {
    throw InvalidArgument("there is no device of type " +
                          c10::DeviceTypeName(options.device_type, /*lower_case=*/true) +
                          " here: compute on the CPU, or start where there is one");
  }
  return {options.device_type, static_cast<at::DeviceIndex>(place % count)};
}

int threads_of(const LaunchOptions& options, int cores) {
  return options.threads_per_rank > 0 ? options.threads_per_rank : std::max(1, cores);
}

std::string failure_text(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return kUnknownException;
  }
}

int exit_code_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const InvalidArgument&) {
    return 2;
  } catch (const FileError&) {
    return 2;
  } catch (...) {
    return 1;
  }
}

namespace {

/// The known worlds, in the order of registration.
class Registry {
 public:
  static Registry& instance() {
    static Registry registry;
    return registry;
  }
  void add(WorldFactory factory) {
    const std::lock_guard lock(mutex_);
    const auto same = std::find_if(all_.begin(), all_.end(), [&](const auto& one) { return one.name == factory.name; });
    if (same != all_.end()) {
      throw InvalidArgument("there is a world called '" + factory.name + "' already: give this one another name");
    }
    all_.push_back(std::move(factory));
  }
  [[nodiscard]] std::vector<WorldFactory> all() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<WorldFactory> all_ = {thread_world(), mpi_world(), process_world()};
};

/// The world with this name. Without a name, the one whose launcher started this process, otherwise threads.
WorldFactory world_called(const std::string& name) {
  const std::vector<WorldFactory> all = Registry::instance().all();
  std::string names;
  for (const WorldFactory& one : all) {
    if (name.empty() ? one.is_started() : one.name == name) return one;
    names += (names.empty() ? "" : ", ") + one.name;
  }
  if (name.empty()) return all.front();
  throw InvalidArgument("there is no world called '" + name + "': there are " + names);
}

std::string name_of_world(int argc, char** argv, const LaunchOptions& options) {
  constexpr std::string_view kFlag = "--stagecraft-world=";
  std::string name = options.world;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with(kFlag)) name = word.substr(kFlag.size());
  }
  return name;
}

}  // namespace

void register_world(WorldFactory factory) { Registry::instance().add(std::move(factory)); }

int launch(int argc, char** argv, const LaunchOptions& options, const std::function<void(World&)>& program) {
  try {
    return world_called(name_of_world(argc, argv, options)).run(options, program);
  } catch (...) {
    std::cerr << (options.name.empty() ? "" : options.name + ": ") + failure_text(std::current_exception()) + "\n";
    return exit_code_of(std::current_exception());
  }
}

}  // namespace stagecraft
