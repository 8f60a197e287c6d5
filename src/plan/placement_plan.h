#pragma once

#include <functional>

#include "search.h"
#include "stagecraft/plan/planner.h"

/// The placements that a request allows, and the plan of one of them.
namespace stagecraft::detail {

/// The placements that a request allows. Throws InvalidArgument when there is none or the request is too large.
std::vector<Placement> placements_of(const PlanRequest& request);

/// Plans one placement: known schedules, search, polish. Schedules are compared by their simulated times and memory.
class PlacementPlan {
 public:
  /// `seconds` returns the time since planning began; at `budget` seconds the search ends. Keeps references.
  PlacementPlan(const PlanRequest& request, const Placement& placement, const std::function<double()>& seconds,
                double budget);

  /// Throws InfeasibleLimit when no schedule was found that keeps the memory limit.
  PlanResult run();

 private:
  [[nodiscard]] bool cancelled() const;
  [[nodiscard]] bool fits(const Simulation& simulation) const;
  /// Tells the caller about a schedule that fits.
  void show(const Schedule& schedule, const Simulation& simulation) const;
  [[nodiscard]] bool counts_buffers() const;

  void plan_around_buffers();
  double plan_within(double limit, double effort, double begin, double end);
  std::vector<Family> starting_points(const Problem& problem) const;
  void continue_fewer(std::vector<Family>& families, const Problem& fewer, const Problem& problem, double effort);
  SearchResult race(const Problem& problem, const std::vector<Family>& families, double effort, std::uint64_t number);
  double polished(const Problem& problem, const std::vector<Candidate>& candidates, double effort);

  void add_named();
  void take_best_named();
  double consider(Schedule schedule, const std::string& origin);
  void solve_exactly_too();
  [[noreturn]] void refuse() const;

  const PlanRequest& request_;
  const Placement& placement_;
  const std::function<double()>& seconds_;
  double budget_;
  double deadline_;  // of the current part of the search
  double bound_ = 0;
  double mean_work_ = 0;
  double part_done_ = 0;  // progress of all searches, 0 to 1
  double part_per_effort_ = 1;
  double least_peak_;       // smallest peak memory of all schedules considered
  bool has_known_ = false;  // a known schedule fits
  PlanResult result_;
};

}  // namespace stagecraft::detail
