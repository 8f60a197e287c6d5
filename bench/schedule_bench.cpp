// Generates, lowers and verifies one schedule, and prints time and memory as one line of JSON. Each measurement is a
// process, so that the peak of resident memory is its own; schedule_bench.py runs it beside torch and computes ratios.
//
//   schedule_bench NAME RANKS STAGES_PER_RANK MICROBATCHES [REPETITIONS]     the best of them is printed

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include "stagecraft/passes/pass.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/generator.h"

namespace {

using Clock = std::chrono::steady_clock;

/// Peak resident memory of this process. (getrusage would include the process that started it.)
long peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    long kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return 0;
}

struct Times {
  double generate;
  double lower;
  double verify;
  [[nodiscard]] double total() const { return generate + lower + verify; }
};

double seconds_since(Clock::time_point& mark) {
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - mark).count();
  mark = now;
  return seconds;
}

Times measure(const std::string& name, const stagecraft::Shape& shape, std::int64_t& actions) {
  auto mark = Clock::now();
  Times times{};
  stagecraft::Schedule schedule = stagecraft::make_schedule(name, shape);
  times.generate = seconds_since(mark);
  stagecraft::run_passes(schedule);
  times.lower = seconds_since(mark);
  stagecraft::require_valid(schedule);
  times.verify = seconds_since(mark);
  actions = schedule.actions();
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "usage: schedule_bench NAME RANKS STAGES_PER_RANK MICROBATCHES [REPETITIONS]\n";
    return 2;
  }
  try {
    const stagecraft::Shape shape{
        .ranks = std::atoi(argv[2]), .stages_per_rank = std::atoi(argv[3]), .microbatches = std::atoi(argv[4])};
    const long before = peak_resident_bytes();
    std::int64_t actions = 0;
    Times times = measure(argv[1], shape, actions);
    const double first = times.total();
    for (int i = argc > 5 ? std::atoi(argv[5]) : 1; i > 1; --i) {
      const Times again = measure(argv[1], shape, actions);
      if (again.total() < times.total()) times = again;
    }
    std::cout << "{\"seconds\": " << times.total() << ", \"first_seconds\": " << first
              << ", \"generate\": " << times.generate << ", \"lower\": " << times.lower
              << ", \"verify\": " << times.verify << ", \"actions\": " << actions
              << ", \"peak_bytes\": " << peak_resident_bytes() - before << "}\n";
  } catch (const std::exception& error) {
    std::cerr << "schedule_bench: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
