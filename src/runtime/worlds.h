#pragma once

#include <exception>
#include <string>

#include "stagecraft/runtime/launch.h"

/// What all kinds of world share when they start and end ranks.
namespace stagecraft {

/// Devices of this type that this process sees; 0 for the CPU.
int device_count(at::DeviceType type);
/// The device of a rank; `place` is its index among the ranks of its host. Throws InvalidArgument when there is no
/// device of the type asked for.
at::Device device_of(const LaunchOptions& options, RankId rank, int place);
/// Threads inside one operation, of a rank that has so many cores.
int threads_of(const LaunchOptions& options, int cores);

std::string failure_text(const std::exception_ptr& failure);
/// 2 for InvalidArgument and FileError, otherwise 1.
int exit_code_of(const std::exception_ptr& failure);

/// The worlds that are always there.
WorldFactory thread_world();
WorldFactory mpi_world();
WorldFactory process_world();

}  // namespace stagecraft
