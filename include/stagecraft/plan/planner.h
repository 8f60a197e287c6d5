#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stagecraft/core/error.h"
#include "stagecraft/sim/simulator.h"

/// The search for a schedule: the smallest span for given ranks, microbatches, costs and memory.
namespace stagecraft {

enum class PlacementChoice { kLinear, kLoop, kV, kAny };

/// How far a search has come.
struct PlanProgress {
  std::string placement;
  double part = 0;         ///< Of the search, from 0 to 1.
  double span = 0;         ///< Best so far.
  double bubble = 0;       ///< Its bubble_span.
  double lower_bound = 0;  ///< On the span, in this placement.
  double seconds = 0;
};

struct PlanRequest {
  int ranks = 1;
  int microbatches = 1;
  Costs costs;
  /// Most memory a rank may hold, in the unit of the costs; 0 means no limit.
  double memory_limit = 0;
  PlacementChoice placement = PlacementChoice::kAny;
  /// 0 takes what the costs say: as many as they have entries, else 1 for linear and any, 2 for loop and v.
  int stages_per_rank = 0;
  /// Seconds after which the best so far is returned. The search itself has a fixed size and usually ends before.
  double time_budget = 30;
  /// How much to search, as a factor.
  double effort = 1;
  std::uint64_t seed = 0;
  /// Solves exactly afterwards, in what is left of the time budget. For small cases; needs the program `cbc`.
  bool exact = false;
  /// 0 takes one per core. The result does not depend on it.
  int threads = 0;
  /// Called now and then from the calling thread.
  std::function<void(const PlanProgress&)> progress;
  /// Asked often, from any thread: true ends the search with the best so far.
  std::function<bool()> stop;
};

/// A known schedule under the same costs.
struct NamedOutcome {
  std::string name;
  Simulation simulation;
  bool fits = true;  ///< Into the memory limit.
};

struct PlanResult {
  Schedule schedule;  ///< Compute-only; it verifies.
  Simulation simulation;
  /// "search", "exact", the name of the known schedule that nothing could beat, or "one at a time" where only one
  /// microbatch at a time leaves messages room to wait.
  std::string origin;
  /// No schedule with this placement and limit has a smaller span; the bubble that this means.
  double lower_bound_span = 0;
  double lower_bound_bubble = 0;
  /// Every known schedule for these ranks, stages and microbatches, in the order of `generators()`; those up to the
  /// first that fits, where the time is up with it.
  std::vector<NamedOutcome> named;
  std::int64_t trials = 0;
  double seconds = 0;
  /// False when the time budget or `stop` ended the search: another run may then end elsewhere. True means that the
  /// same request gives the same schedule.
  bool finished = true;
  /// No schedule with this placement and limit has a smaller span: it meets the lower bound, or the exact solve says
  /// so.
  bool proven = false;
};

/// A memory limit that no schedule can keep.
class InfeasibleLimit : public InvalidArgument {
 public:
  InfeasibleLimit(const std::string& message, double smallest) : InvalidArgument(message), smallest_(smallest) {}
  /// The smallest limit for which there is a schedule; where waiting messages count, the smallest that was found.
  [[nodiscard]] double smallest() const { return smallest_; }

 private:
  double smallest_;
};

/// Throws InvalidArgument for numbers or costs that cannot be, InfeasibleLimit for a limit that cannot.
PlanResult plan(const PlanRequest& request);

/// The smallest limit for which there is a schedule: one microbatch at a time, in all stages of the fullest rank.
/// Messages that wait come on top.
double smallest_memory_limit(const Costs& costs, const Placement& placement);

/// A lower bound of the span, the largest of any rank: no schedule is shorter. `memory_limit` 0 means none.
double span_lower_bound(const Costs& costs, const Placement& placement, int microbatches, double memory_limit);

}  // namespace stagecraft
