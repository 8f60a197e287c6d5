// Planning: the search runs without the GIL, and stops for Ctrl-C.

#include <sstream>

#include "cost_changes.h"
#include "functions.h"
#include "plan_report.h"
#include "search.h"
#include "stagecraft/core/text.h"

namespace stagecraft::python {
namespace {

PlacementChoice placement_choice(const std::string& name) {
  if (name == "linear") return PlacementChoice::kLinear;
  if (name == "loop") return PlacementChoice::kLoop;
  if (name == "v") return PlacementChoice::kV;
  if (name == "any") return PlacementChoice::kAny;
  throw InvalidArgument("placement: got " + in_quotes(name) + ", expected linear, loop, v or any");
}

Placement placement_of(const Arguments& args, Py_ssize_t i) {
  const std::string name = args.text(i, "placement");
  const int ranks = args.integer(i + 1, "ranks");
  const int stages_per_rank = args.integer(i + 2, "stages_per_rank");
  if (ranks < 1 || ranks > kMaxRanks || stages_per_rank < 1 || stages_per_rank > kMaxStage / ranks) {
    throw InvalidArgument("ranks and stages_per_rank: got " + std::to_string(ranks) + " and " +
                          std::to_string(stages_per_rank) + ", must be at least 1 and give at most " +
                          std::to_string(kMaxStage) + " stages");
  }
  if (name == "v") return Placement::v(ranks, stages_per_rank);
  if (name == "loop") return Placement::loop(ranks, stages_per_rank);
  if (name == "linear" && stages_per_rank == 1) return Placement::linear(ranks);
  throw InvalidArgument("placement: got " + in_quotes(name) + " with " + std::to_string(stages_per_rank) +
                        " stages per rank, expected linear with 1, loop or v");
}

/// A number in the unit of the costs, or a text such as "80GiB"; None is no limit.
double memory_limit(const Arguments& args, Py_ssize_t i, const Costs& costs) {
  if (args.is_none(i)) return 0;
  if (PyUnicode_Check(args.at(i)) == 0) return args.number(i, "memory_limit");
  try {
    return cli::to_memory_limit(args.text(i, "memory_limit")).in_unit_of(costs, "memory_limit");
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    throw InvalidArgument(message.starts_with("memory_limit") ? message : "memory_limit: " + message);
  }
}

void report(PyObject* callback, const PlanProgress& progress) {
  const Object result(PyObject_CallFunction(callback, "s#ddddd", progress.placement.data(),
                                            static_cast<Py_ssize_t>(progress.placement.size()), progress.part,
                                            progress.span, progress.bubble, progress.lower_bound, progress.seconds));
}

bool asks_to_stop(PyObject* callback) {
  const Object answer(PyObject_CallNoArgs(callback));
  const int truth = PyObject_IsTrue(answer.get());
  check(truth);
  return truth == 1;
}

/// Runs the search; between waits it handles signals and calls the callbacks, on this thread. What they raise ends the
/// search.
Search::Found watched(Search& search, PyObject* progress, PyObject* stop) {
  constexpr double kPause = 0.03;
  constexpr double kPatience = 1;  // for a search that was told to end; it then ends by itself
  bool ended = false;
  try {
    while (!ended) {
      ended = without_gil([&] { return search.wait(kPause); });
      check(PyErr_CheckSignals());
      if (const auto latest = search.progress(); latest && progress != Py_None) report(progress, *latest);
      if (stop != Py_None && asks_to_stop(stop)) search.stop();
    }
  } catch (const PythonError&) {
    search.stop();
    without_gil([&] {
      for (double waited = 0; !ended && waited < kPatience; waited += kPause) {
        ended = search.wait(kPause);
        search.progress();
      }
    });
    throw;
  }
  return search.found();
}

PyObject* callback(const Arguments& args, Py_ssize_t i, const std::string& name) {
  PyObject* value = args.at(i);
  if (value != Py_None && PyCallable_Check(value) == 0) refuse_type(name, value, "a function, or None");
  return value;
}

}  // namespace

/// Returns (schedule, costs, report, text).
Object planned(const Arguments& args) {
  const auto& file = args.value<CostFile>(2, "costs");
  PlanRequest request;
  request.ranks = args.integer(0, "ranks");
  request.microbatches = args.integer(1, "microbatches");
  request.costs = file.costs;
  request.memory_limit = memory_limit(args, 3, file.costs);
  request.placement = placement_choice(args.text(4, "placement"));
  request.stages_per_rank = args.integer_or(5, "stages_per_rank", 0);
  request.time_budget = args.number(6, "time_budget");
  request.effort = args.number(7, "effort");
  request.seed = args.seed(8, "seed");
  request.exact = args.flag(9, "exact");
  request.threads = args.integer_or(10, "threads", 0);
  if (request.threads < 0)
    throw InvalidArgument("threads: got " + std::to_string(request.threads) + ", must be 0 or more");
  PyObject* progress = callback(args, 11, "progress");
  PyObject* stop = callback(args, 12, "stop");

  Search search(std::move(request), file.layers);
  Search::Found found = watched(search, progress, stop);
  std::ostringstream text;
  cli::write_plan_report(text, found.request, found.result, found.cuts);
  const cli::Json json = cli::plan_json(found.request, found.result, found.cuts);
  return tuple_of(wrapped(std::move(found.result.schedule)), wrapped(CostFile{std::move(found.request.costs), {}}),
                  to_python(json), to_python(std::string_view(text.str())));
}

Object smallest_limit(const Arguments& args) {
  const Costs& costs = stage_costs(args.value<CostFile>(0, "costs"));
  const Placement placement = placement_of(args, 1);
  return to_python(without_gil([&] {
    require_fit(costs, placement.stages(), placement.ranks());
    return smallest_memory_limit(costs, placement);
  }));
}

Object lower_bound_of_span(const Arguments& args) {
  const Costs& costs = stage_costs(args.value<CostFile>(0, "costs"));
  const Placement placement = placement_of(args, 1);
  const int microbatches = args.integer(4, "microbatches");
  const double limit = memory_limit(args, 5, costs);
  if (microbatches < 1)
    throw InvalidArgument("microbatches: got " + std::to_string(microbatches) + ", must be at least 1");
  return to_python(without_gil([&] {
    require_fit(costs, placement.stages(), placement.ranks());
    return span_lower_bound(costs, placement, microbatches, limit);
  }));
}

}  // namespace stagecraft::python
