#pragma once

#include <exception>
#include <string>

#include "stagecraft/runtime/launch.h"

/// What every kind of world does alike when it starts and ends ranks.
namespace stagecraft {

/// Where a rank computes; `place` is its position among the ranks of its host. Throws InvalidArgument without such a
/// device.
at::Device device_of(const LaunchOptions& options, RankId rank, int place);
/// Threads inside one operation, of a rank that has so many cores.
int threads_of(const LaunchOptions& options, int cores);

std::string failure_text(const std::exception_ptr& failure);
/// 2 for InvalidArgument and FileError, otherwise 1.
int exit_code_of(const std::exception_ptr& failure);

/// The worlds that are always there.
WorldFactory thread_world();
WorldFactory mpi_world();

}  // namespace stagecraft
