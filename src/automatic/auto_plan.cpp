#include "auto_plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <sstream>

#include "stagecraft/core/error.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/plan/planner.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/generator.h"
#include "stagecraft/sim/cost_file.h"
#include "stagecraft/sim/profile.h"
#include "stagecraft/sim/simulator.h"

namespace stagecraft {
namespace {

constexpr double kWorthwhile = 1e-3;  // the smallest gain, as a part of a step, that is worth a change
constexpr char kSeparator = '\x1f';

std::string exact_text(double value) {
  std::array<char, 64> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  return {digits.data(), end.ptr};
}

PlanRequest request_for(const Schedule& starting, const Costs& costs, double memory_limit, const AutoOptions& options) {
  const Placement& placement = starting.placement;
  const int per_rank = placement.stages() / placement.ranks();
  PlanRequest request;
  request.ranks = placement.ranks();
  request.microbatches = starting.microbatches;
  request.costs = costs;
  request.memory_limit = std::isfinite(memory_limit) ? memory_limit : 0;
  request.stages_per_rank = per_rank;
  request.placement = placement == Placement::loop(request.ranks, per_rank)
                          ? (per_rank == 1 ? PlacementChoice::kLinear : PlacementChoice::kLoop)
                          : PlacementChoice::kV;
  request.time_budget = options.time_budget;
  request.seed = options.seed;
  return request;
}

/// The schedule as it would be executed.
Schedule lowered(Schedule schedule, const std::string& passes) {
  run_passes(schedule, passes);
  return schedule;
}

/// Keeps the schedule with the shortest makespan.
class Choice {
 public:
  Choice(const Costs& costs, const std::string& passes) : costs_(costs), passes_(passes) {}

  [[nodiscard]] double makespan(const Schedule& schedule) const {
    return simulate(lowered(schedule, passes_), costs_).makespan;
  }

  void consider(const Schedule& schedule) {
    const double time = makespan(schedule);
    if (time >= best_time) return;
    best_time = time;
    best = schedule;
  }

  Schedule best;
  double best_time = HUGE_VAL;

 private:
  const Costs& costs_;
  const std::string& passes_;
};

}  // namespace

double auto_memory_limit(const AutoOptions& options, const Schedule& starting) {
  if (options.memory_limit == 0) {
    const std::vector<int> peaks = peak_live_activations(starting);
    return *std::max_element(peaks.begin(), peaks.end());
  }
  const double smallest = smallest_memory_limit(Costs(), starting.placement);
  if (options.memory_limit >= smallest) return options.memory_limit;
  throw InvalidArgument("automatic.memory_limit is " + exact_text(options.memory_limit) +
                        ", but a rank holds at least " + exact_text(smallest) +
                        " activations, one in each of its stages: give that or more, or 0");
}

AutoPlan find_plan(const std::vector<Recording>& recordings, const Schedule& starting, double memory_limit,
                   const AutoOptions& options, const std::string& passes) {
  Profile measured = profile(recordings, {.skip = 0});
  // The time between two steps does not count.
  for (StageCosts& stage : measured.costs.stages) stage.optimizer = 0;
  AutoPlan found;
  found.costs = measured.costs;
  const PlanResult result = plan(request_for(starting, found.costs, memory_limit, options));
  Choice choice(found.costs, passes);
  const double makespan_before = choice.makespan(starting);
  choice.consider(result.schedule);
  Schedule merged = result.schedule;  // a B may be faster than its parts
  merge_backward(merged);
  choice.consider(merged);
  for (const NamedOutcome& named : result.named) {
    if (!named.fits) continue;
    choice.consider(make_schedule(named.name, {.ranks = starting.ranks(),
                                               .stages_per_rank = starting.stages() / starting.ranks(),
                                               .microbatches = starting.microbatches}));
  }
  found.name = starting.name;
  found.predicted_before = found.predicted_after = predicted_period(measured, lowered(starting, passes));
  if (choice.best_time > (1 - kWorthwhile) * makespan_before) return found;
  found.name = choice.best.name;
  found.predicted_after = predicted_period(measured, lowered(choice.best, passes));
  found.csv = to_csv(choice.best);
  return found;
}

std::string to_text(const AutoPlan& plan) {
  std::string text;
  for (const std::string& part : {plan.name, exact_text(plan.predicted_before), exact_text(plan.predicted_after),
                                  costs_to_json(plan.costs), plan.csv}) {
    text += part + kSeparator;
  }
  return text;
}

AutoPlan to_auto_plan(const std::string& text) {
  std::istringstream in(text);
  AutoPlan plan;
  std::string before;
  std::string after;
  std::string costs;
  for (std::string* part : {&plan.name, &before, &after, &costs, &plan.csv}) std::getline(in, *part, kSeparator);
  std::from_chars(before.data(), before.data() + before.size(), plan.predicted_before);
  std::from_chars(after.data(), after.data() + after.size(), plan.predicted_after);
  plan.costs = parse_costs(costs);
  return plan;
}

}  // namespace stagecraft
