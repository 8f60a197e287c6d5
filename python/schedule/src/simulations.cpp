// Simulations and comparisons.

#include <algorithm>
#include <sstream>

#include "functions.h"
#include "stagecraft/view/render.h"

namespace stagecraft::python {
namespace {

using cli::SimulationReport;

std::size_t rank_index(const Arguments& args, Py_ssize_t i, std::size_t ranks) {
  const int rank = args.integer(i, "rank");
  if (rank >= 0 && static_cast<std::size_t>(rank) < ranks) return static_cast<std::size_t>(rank);
  throw InvalidArgument("rank: got " + std::to_string(rank) + ", must be from 0 to " + std::to_string(ranks - 1));
}

template <typename Items, typename Number>
Object column(const Items& items, Number&& number) {
  std::vector<double> numbers;
  numbers.reserve(items.size());
  for (const auto& item : items) numbers.push_back(number(item));
  return raw_bytes(numbers);
}

}  // namespace

Object simulated(const Arguments& args) {
  SimulationReport report;
  const auto& schedule = args.value<Schedule>(0, "schedule");
  const auto& costs = args.value<CostFile>(1, "costs");
  const double jitter = args.number(2, "jitter");
  const int runs = args.integer(3, "runs");
  const std::uint64_t seed = args.seed(4, "seed");
  without_gil([&] {
    report.file = schedule.name;
    report.schedule = schedule;
    report.costs = stage_costs(costs);
    report.simulation = simulate(schedule, report.costs, {.keep_times = true, .keep_memory = true});
    report.path = critical_path(schedule, report.simulation);
    if (jitter != 0) report.jitter = simulate_jitter(schedule, report.costs, jitter, runs, seed);
  });
  return wrapped(std::move(report));
}

Object simulation_facts(const Arguments& args) {
  return to_python(cli::to_json(args.value<SimulationReport>(0, "simulation")));
}

Object simulation_text(const Arguments& args) {
  std::ostringstream out;
  cli::write_report(out, args.value<SimulationReport>(0, "simulation"));
  return to_python(std::string_view(out.str()));
}

/// Starts, ends and waits for parameters, per slot.
Object simulation_times(const Arguments& args) {
  const Simulation& simulation = args.value<SimulationReport>(0, "simulation").simulation;
  const std::size_t rank = rank_index(args, 1, simulation.times.size());
  const auto& times = simulation.times[rank];
  const std::vector<double> waits =
      simulation.parameter_waits.empty() ? std::vector<double>(times.size()) : simulation.parameter_waits[rank];
  return tuple_of(column(times, [](const ActionTime& time) { return time.start; }),
                  column(times, [](const ActionTime& time) { return time.end; }), raw_bytes(waits));
}

/// Times and the memory held from each on.
Object simulation_memory(const Arguments& args) {
  const Simulation& simulation = args.value<SimulationReport>(0, "simulation").simulation;
  const auto& points = simulation.memory[rank_index(args, 1, simulation.memory.size())];
  return tuple_of(column(points, [](const MemoryPoint& point) { return point.time; }),
                  column(points, [](const MemoryPoint& point) { return point.memory; }));
}

Object simulation_picture(const Arguments& args) {
  const auto& report = args.value<SimulationReport>(0, "simulation");
  const bool svg = args.text(1, "format") == "svg";
  std::ostringstream out;
  without_gil([&] {
    svg ? write_simulation_svg(out, report.schedule, report.simulation)
        : write_simulation_trace(out, report.schedule, report.simulation);
  });
  return to_python(std::string_view(out.str()));
}

/// Takes names, schedules and costs; returns (list of outcomes, text), the shortest first.
Object compared(const Arguments& args) {
  const std::vector<std::string> names = args.texts(0, "names");
  const std::vector<PyObject*> schedules = args.items(args.at(1), "schedules");
  const auto& costs = args.value<CostFile>(2, "costs");
  if (schedules.empty()) throw InvalidArgument("schedules: got none: give at least one to compare");
  if (names.size() != schedules.size()) throw InvalidArgument("names: give as many as schedules");
  std::vector<SimulationReport> reports(schedules.size());
  for (std::size_t i = 0; i < reports.size(); ++i) {
    reports[i].file = names[i];
    reports[i].schedule = args.value_of<Schedule>(schedules[i], "schedules[" + std::to_string(i) + "]");
  }
  std::ostringstream text;
  without_gil([&] {
    for (SimulationReport& report : reports) {
      report.costs = stage_costs(costs);
      report.simulation = simulate(report.schedule, report.costs);
    }
    std::stable_sort(reports.begin(), reports.end(), [](const SimulationReport& a, const SimulationReport& b) {
      return a.simulation.span < b.simulation.span;
    });
    cli::write_comparison(text, reports);
  });
  return tuple_of(to_python(cli::comparison_json(reports)), to_python(std::string_view(text.str())));
}

}  // namespace stagecraft::python
