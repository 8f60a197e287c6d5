#include "stagecraft/plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "lower_bound.h"
#include "placements.h"
#include "polish.h"
#include "search.h"
#include "seeds.h"
#include "stagecraft/core/clock.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/plan/exact.h"
#include "stagecraft/schedule/generator.h"

namespace stagecraft {
namespace {

using detail::Problem;

constexpr double kEffort = 1.5e8;    // parts dispatched: some ten seconds on two cores
constexpr double kMostTrials = 2e5;  // small problems need no more
constexpr double kSmallShare = 0.6;  // of the effort, for fewer microbatches
constexpr int kSmallRaces = 2;
constexpr double kPolishEffort = 3e7;
constexpr double kMostPolish = 3e5;
constexpr double kTinyMemory = 1e-6;

class Clock {
 public:
  [[nodiscard]] double seconds() const { return seconds_now() - start_; }

 private:
  double start_ = seconds_now();
};

void check(const PlanRequest& request) {
  if (request.ranks < 1) throw InvalidArgument(fmt::format("a plan needs at least 1 rank, got {}", request.ranks));
  if (request.microbatches < 1) {
    throw InvalidArgument(fmt::format("a plan needs at least 1 microbatch, got {}", request.microbatches));
  }
  if (!(request.memory_limit >= 0) || !std::isfinite(request.memory_limit)) {
    throw InvalidArgument(
        fmt::format("a memory limit of {} is not possible: give one above 0, or 0 for none", request.memory_limit));
  }
  if (!(request.time_budget > 0)) {
    throw InvalidArgument(fmt::format("a time budget of {} s is not possible: give one above 0", request.time_budget));
  }
  if (!(request.effort > 0)) throw InvalidArgument(fmt::format("an effort of {} is not possible", request.effort));
}

void check_limit(const PlanRequest& request, const Placement& placement) {
  const double smallest = smallest_memory_limit(request.costs, placement);
  if (request.memory_limit == 0 || request.memory_limit >= smallest - kTinyMemory) return;
  throw InfeasibleLimit(
      fmt::format(
          "a memory limit of {:g} is too small: a rank holds a microbatch's activations in all its stages before "
          "the first of them can go, which is {:g} here; give at least that",
          request.memory_limit, smallest),
      smallest);
}

Schedule to_schedule(const Placement& placement, int microbatches, const std::vector<detail::StepRow>& rows) {
  constexpr std::array kKinds = {ActionKind::kForward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight};
  Schedule schedule{"planned", placement, microbatches, {}};
  for (const detail::StepRow& steps : rows) {
    Row& row = schedule.rows.emplace_back();
    row.reserve(steps.size());
    for (const detail::Step& step : steps) {
      row.emplace_back(kKinds[static_cast<std::size_t>(step.part)], StageId(step.stage), MicrobatchId(step.microbatch));
    }
  }
  return schedule;
}

/// The planning of one placement.
class PlacementPlan {
 public:
  PlacementPlan(const PlanRequest& request, const Placement& placement, const Clock& clock, double budget)
      : request_(request), placement_(placement), clock_(clock), budget_(budget), deadline_(budget) {}

  PlanResult run() {
    PlanResult result;
    const Problem problem(request_.costs, placement_, request_.microbatches, request_.memory_limit);
    bound_ = detail::lower_bound(problem);
    result.lower_bound_span = bound_;
    work_ = 0;
    for (const double work : problem.work) work_ += work / problem.ranks;
    result.lower_bound_bubble = std::max(0.0, 1 - work_ / bound_);
    std::vector<detail::Family> families = starting_points(problem, &result);
    // Many microbatches repeat what fewer do: the search for these is faster, and its result is continued.
    const int fewer = detail::enough_microbatches(problem);
    double done = 0;
    if (problem.microbatches > 1.15 * fewer) {
      const Problem small(request_.costs, placement_, fewer, request_.memory_limit);
      // On a slow machine it must leave time to continue its result.
      deadline_ = clock_.seconds() + 0.5 * (budget_ - clock_.seconds());
      const std::vector<detail::Family> starts = starting_points(small, nullptr);
      for (int race = 0; race < kSmallRaces; ++race) {
        const auto found = search(small, starts, kSmallShare / kSmallRaces, done, detail::lower_bound(small), race);
        result.trials += found.trials;
        for (const detail::Candidate& candidate : found.best) continue_with(families, candidate.policy, small, problem);
        for (const detail::Block& block : found.blocks) families.push_back({policy_of(problem, block)});
        done += kSmallShare / kSmallRaces;
      }
      result.finished = !cancelled();
      deadline_ = budget_;
    }
    const auto found = search(problem, families, 1 - done, done, bound_, 0);
    result.trials += found.trials;
    take_best(result, found, problem);
    result.finished = result.finished && !cancelled();
    if (request_.exact) solve(result);
    result.proven = result.proven || result.simulation.span <= bound_ * (1 + 1e-9);
    return result;
  }

 private:
  [[nodiscard]] bool cancelled() const { return clock_.seconds() > deadline_ || (request_.stop && request_.stop()); }

  [[nodiscard]] bool fits(const Simulation& simulation) const {
    return request_.memory_limit == 0 || simulation.peak_memory() <= request_.memory_limit + kTinyMemory;
  }

  /// Policies from every known schedule of this placement; their outcomes too, if `result` is given.
  std::vector<detail::Family> starting_points(const Problem& problem, PlanResult* result) {
    // Without slack limits the plain block always finds a way, however little memory there is.
    std::vector<detail::Family> families = {variants_of(problem, policy_of(problem, detail::Block()))};
    const int v = placement_.stages() / placement_.ranks();
    for (const Generator* generator : generators()) {
      if (v < generator->min_stages_per_rank || v > generator->max_stages_per_rank) continue;
      if (generator->name == "ForwardOnly") continue;
      const Shape shape{.ranks = problem.ranks, .stages_per_rank = v, .microbatches = problem.microbatches};
      const Schedule schedule = make_schedule(generator->name, shape);
      if (!(schedule.placement == placement_)) continue;
      Simulation simulation = simulate(schedule, request_.costs, {.keep_times = true});
      families.push_back(variants_of(problem, policy_from(problem, schedule, simulation)));
      if (result == nullptr) continue;
      simulation.times.clear();
      const bool fitting = fits(simulation);
      result->named.push_back({std::string(generator->name), std::move(simulation), fitting});
    }
    return families;
  }

  /// What a policy for fewer microbatches means for all of them.
  static void continue_with(std::vector<detail::Family>& families, const detail::Policy& policy, const Problem& small,
                            const Problem& problem) {
    detail::Dispatcher dispatcher(small);
    dispatcher.run(policy);
    detail::Policy exact = policy;
    exact.due = dispatcher.starts();
    families.push_back(detail::extensions_of(exact, small, problem));
    families.push_back(detail::extensions_of(policy, small, problem));
  }

  detail::SearchResult search(const Problem& problem, const std::vector<detail::Family>& families, double share,
                              double done, double bound, int race) {
    const double parts = 3.0 * problem.stages * problem.microbatches;
    detail::SearchOptions options;
    options.seed = kSmallRaces * request_.seed + static_cast<std::uint64_t>(race);
    options.effort = share * request_.effort * std::min(kEffort, kMostTrials * parts);
    options.threads = request_.threads > 0 ? request_.threads : static_cast<int>(std::thread::hardware_concurrency());
    options.lower_bound = bound;
    options.more_microbatches = request_.microbatches - problem.microbatches;
    if (options.more_microbatches == 0 && done > 0) options.block_share = 0;
    options.cancelled = [this] { return cancelled(); };
    options.progress = [&, share, done](double span, double part) {
      if (!request_.progress) return;
      const double work = work_ * problem.microbatches / request_.microbatches;
      request_.progress({.placement = std::string(placement_.style()),
                         .part = done + share * part,
                         .span = span,
                         .bubble = 1 - work / span,
                         .lower_bound = bound,
                         .seconds = clock_.seconds()});
    };
    return detail::search(problem, families, options);
  }

  static bool has_fitting(const std::vector<NamedOutcome>& named) {
    return std::any_of(named.begin(), named.end(), [](const NamedOutcome& outcome) { return outcome.fits; });
  }

  /// The search's schedule, or a known one that is better: those may use full backwards and overlaps, which the search
  /// does not.
  void take_best(PlanResult& result, const detail::SearchResult& found, const Problem& problem) const {
    if (!found.best.empty()) {
      detail::Dispatcher dispatcher(problem);
      dispatcher.run(found.best.front().policy);
      std::vector<detail::StepRow> rows = dispatcher.rows();
      std::fprintf(stderr,"before polish %.5f at %.1f\n",1-work_/found.best.front().outcome.span,clock_.seconds());
      if (found.best.front().outcome.span > bound_ * (1 + 1e-9)) {
        const double parts = 3.0 * problem.stages * problem.microbatches;
        const double trials = std::min(kMostPolish, kPolishEffort / parts) * std::min(1.0, 10 * request_.effort);
        detail::polish(problem, rows, request_.seed, static_cast<std::int64_t>(trials), [this] { return cancelled(); });
      }
      result.schedule = to_schedule(placement_, problem.microbatches, rows);
      require_valid(result.schedule);
      result.simulation = simulate(result.schedule, request_.costs);
      result.origin = "search";
    }
    if (result.origin.empty() && !has_fitting(result.named))
      throw InternalError("the planner found no schedule at all");
    for (const NamedOutcome& named : result.named) {
      const bool better = result.origin.empty() || named.simulation.span < result.simulation.span * (1 - 1e-12);
      if (!named.fits || !better) continue;
      const Shape shape{.ranks = problem.ranks,
                        .stages_per_rank = placement_.stages() / placement_.ranks(),
                        .microbatches = problem.microbatches};
      result.schedule = make_schedule(named.name, shape);
      result.simulation = named.simulation;
      result.origin = named.name;
    }
  }

  void solve(PlanResult& result) const {
    const double left = std::max(1.0, budget_ - clock_.seconds());
    ExactResult exact = solve_exactly(request_.costs, placement_, request_.microbatches, request_.memory_limit,
                                      result.simulation.span, left);
    result.proven = exact.proven;
    if (exact.simulation.span < result.simulation.span * (1 - 1e-6)) {
      result.schedule = std::move(exact.schedule);
      result.simulation = std::move(exact.simulation);
      result.origin = "exact";
    }
    if (!result.proven) return;
    result.lower_bound_span = result.simulation.span;
    result.lower_bound_bubble = result.simulation.bubble_span();
  }

  const PlanRequest& request_;
  const Placement& placement_;
  const Clock& clock_;
  double budget_;
  double deadline_;  // of the part of the search that runs
  double bound_ = 0;
  double work_ = 0;  // of the mean rank
};

}  // namespace

PlanResult plan(const PlanRequest& request) {
  check(request);
  const std::vector<Placement> placements = detail::placements_of(request);
  for (const Placement& placement : placements) {
    require_fit(request.costs, placement.stages(), placement.ranks());
    check_limit(request, placement);
  }
  const Clock clock;
  std::optional<PlanResult> best;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const double budget = request.time_budget * static_cast<double>(i + 1) / static_cast<double>(placements.size());
    PlanResult result = PlacementPlan(request, placements[i], clock, budget).run();
    if (best) {
      result.trials += best->trials;
      result.finished = result.finished && best->finished;
      const bool keep = best->simulation.span <= result.simulation.span;
      PlanResult& loser = keep ? result : *best;
      PlanResult& winner = keep ? *best : result;
      winner.trials = result.trials;
      winner.finished = result.finished;
      for (NamedOutcome& named : loser.named) winner.named.push_back(std::move(named));
      if (keep) continue;
    }
    best = std::move(result);
  }
  best->seconds = clock.seconds();
  return std::move(*best);
}

double smallest_memory_limit(const Costs& costs, const Placement& placement) {
  const Problem problem(costs, placement, 1, 0);
  return *std::max_element(problem.whole.begin(), problem.whole.end());
}

double span_lower_bound(const Costs& costs, const Placement& placement, int microbatches, double memory_limit) {
  return detail::lower_bound(Problem(costs, placement, microbatches, memory_limit));
}

}  // namespace stagecraft
