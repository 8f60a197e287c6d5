#include "stagecraft/core/in_parts.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace stagecraft {
namespace {

/// Least number of actions per thread: starting a thread takes as long as some thousand actions.
constexpr std::size_t kWorthAThread = std::size_t{1} << 15;
constexpr std::size_t kMostParts = 16;

std::size_t number_of_parts(std::size_t count, std::size_t size) {
  static const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  return std::max<std::size_t>(1, std::min({count, cores, kMostParts, size / kWorthAThread}));
}

}  // namespace

void in_parts(std::size_t count, std::size_t size, const std::function<void(std::size_t, std::size_t)>& work) {
  const std::size_t parts = number_of_parts(count, size);
  if (parts == 1) return work(0, count);
  std::vector<std::exception_ptr> failures(parts);
  const auto run = [&](std::size_t part) {
    try {
      work(count * part / parts, count * (part + 1) / parts);
    } catch (...) {
      failures[part] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(parts);
  for (std::size_t part = 1; part < parts; ++part) {
    try {
      threads.emplace_back(run, part);
    } catch (const std::system_error&) {
      run(part);  // no thread could be started
    }
  }
  run(0);
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace stagecraft
