#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stagecraft/core/error.h"
#include "stagecraft/sim/simulator.h"

/// Searches for the schedule with the smallest span for given ranks, microbatches, costs and memory limit.
namespace stagecraft {

enum class PlacementChoice { kLinear, kLoop, kV, kAny };

/// Progress of a search.
struct PlanProgress {
  std::string placement;
  double part = 0;         ///< Completed fraction of the search, from 0 to 1.
  double span = 0;         ///< Best span so far.
  double bubble = 0;       ///< Its bubble_span.
  double lower_bound = 0;  ///< Lower bound on the span, for this placement.
  double seconds = 0;
};

struct PlanRequest {
  int ranks = 1;
  int microbatches = 1;
  Costs costs;
  /// Most memory a rank may hold, in the unit of the costs; 0 means no limit. Counts all that the costs state:
  /// activations, messages, parameters, gradients, state of the optimizer.
  double memory_limit = 0;
  PlacementChoice placement = PlacementChoice::kAny;
  /// 0 means the number of stages in `costs` divided by the ranks; if `costs` has a single entry, 1 for linear and any,
  /// 2 for loop and v.
  int stages_per_rank = 0;
  /// Seconds after which the best schedule so far is returned. The search has a fixed size and usually ends earlier.
  double time_budget = 30;
  /// Factor on the size of the search; above 0.
  double effort = 1;
  std::uint64_t seed = 0;
  /// Runs `solve_exactly` after the search, in the rest of the time budget. For small cases; needs the command `cbc`.
  bool exact = false;
  /// 0 means one thread per core. The result does not depend on the number of threads.
  int threads = 0;
  /// Called from time to time, on the thread that called `plan`.
  std::function<void(const PlanProgress&)> progress;
  /// Called on the thread that called `plan` with every schedule that keeps the memory limit and is shorter than those
  /// before, while the search goes on. The result does not depend on it.
  std::function<void(const Schedule&, const Simulation&)> improved;
  /// Called often, from any thread; returning true ends the search with the best schedule so far.
  std::function<bool()> stop;
};

/// A known schedule, simulated with the costs of the request.
struct NamedOutcome {
  std::string name;
  Simulation simulation;
  bool fits = true;  ///< Whether it keeps the memory limit.
};

struct PlanResult {
  Schedule schedule;  ///< Compute-only and verified.
  Simulation simulation;
  /// Where the schedule comes from: "search", "exact", the name of a known schedule that was not improved upon, or "one
  /// at a time" when only running one microbatch at a time leaves memory for waiting messages.
  std::string origin;
  /// Lower bound on the span for this placement and memory limit, and the bubble of that span.
  double lower_bound_span = 0;
  double lower_bound_bubble = 0;
  /// Every known schedule for these ranks, stages and microbatches, in the order of `generators()`. When time runs out,
  /// the list is cut short, but not before the first schedule that fits.
  std::vector<NamedOutcome> named;
  std::int64_t trials = 0;
  double seconds = 0;
  /// False when the time budget or `stop` ended the search: another run may then give another schedule. True means that
  /// the same request gives the same schedule.
  bool finished = true;
  /// Whether the span is proven optimal for this placement and limit, by the lower bound or by the exact solve.
  bool proven = false;
};

/// The memory limit is too small: no schedule keeps it, or none was found that does.
class InfeasibleLimit : public InvalidArgument {
 public:
  InfeasibleLimit(const std::string& message, double smallest) : InvalidArgument(message), smallest_(smallest) {}
  /// The smallest feasible limit. When waiting messages take memory, the smallest peak of the schedules tried.
  [[nodiscard]] double smallest() const { return smallest_; }

 private:
  double smallest_;
};

/// Throws InvalidArgument for invalid numbers or costs, InfeasibleLimit when no schedule keeps the memory limit.
PlanResult plan(const PlanRequest& request);

/// The smallest feasible memory limit: the activations of one microbatch in all stages of a rank, for the rank where
/// they are largest, without waiting messages. If the costs have more than activations: the peak of running one
/// microbatch at a time, all included.
double smallest_memory_limit(const Costs& costs, const Placement& placement);

/// A lower bound on the span (the largest span of any rank) of every schedule. `memory_limit` 0 means no limit.
double span_lower_bound(const Costs& costs, const Placement& placement, int microbatches, double memory_limit);

}  // namespace stagecraft
