// Generates, lowers and verifies one schedule, and prints what it cost as one line of JSON. A process per measurement,
// so that the peak of resident memory belongs to it alone; schedule_bench.py runs it beside torch and makes the ratios.
//
//   schedule_bench NAME RANKS STAGES_PER_RANK MICROBATCHES [REPETITIONS]

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "stagecraft/passes/pass.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/generator.h"

namespace {

using Clock = std::chrono::steady_clock;

long peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
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
    const int repetitions = argc > 5 ? std::max(1, std::atoi(argv[5])) : 1;
    const long before = peak_resident_bytes();
    std::int64_t actions = 0;
    std::vector<Times> runs;
    for (int i = 0; i < repetitions; ++i) runs.push_back(measure(argv[1], shape, actions));
    std::sort(runs.begin(), runs.end(), [](const Times& a, const Times& b) { return a.total() < b.total(); });
    const Times& median = runs[runs.size() / 2];
    std::cout << "{\"seconds\": " << median.total() << ", \"generate\": " << median.generate
              << ", \"lower\": " << median.lower << ", \"verify\": " << median.verify << ", \"actions\": " << actions
              << ", \"peak_bytes\": " << peak_resident_bytes() - before << "}\n";
  } catch (const std::exception& error) {
    std::cerr << "schedule_bench: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
