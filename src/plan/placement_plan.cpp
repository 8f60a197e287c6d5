#include "placement_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "annealing.h"
#include "feasibility.h"
#include "problem.h"
#include "seeds.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/plan/exact.h"
#include "stagecraft/schedule/generator.h"

namespace stagecraft::detail {
namespace {

constexpr double kEffort = 2e8;       // parts dispatched: about 12 s on two cores
constexpr double kMostTrials = 2e5;   // enough for small problems
constexpr double kFirstShare = 0.15;  // of the effort: a first race, enough for easy cases and small budgets
constexpr double kFewerShare = 0.7;   // of the effort: both races with fewer microbatches
constexpr double kFewerWorth = 1.15;  // ratio of microbatches from which to search with fewer first
constexpr double kBlockShare = 0.25;  // of the effort of a race
constexpr double kTightBlockShare = 0.5;
constexpr double kPolishEffort = 3e7;
constexpr double kMostPolish = 3e5;
constexpr std::size_t kPolished = 2;  // candidates
constexpr int kProbes = 6;            // short searches for the memory that messages need
constexpr double kProbeEffort = 0.02;
constexpr double kProbePart = 0.2;  // of the whole search, in the reported progress
constexpr double kMainEffort = 0.6;
constexpr int kMostThreads = 24;  // variants of one policy, the most that run in parallel

double parts_of(const Problem& problem) { return 3.0 * problem.stages * problem.microbatches; }

void add_finalists(std::vector<Family>& families, const SearchResult& found) {
  for (const Candidate& candidate : found.best) {
    families.push_back({1, [policy = candidate.policy](std::size_t) { return policy; }});
  }
}

/// Whether memory holds fewer microbatches in flight than there are ranks; then the building block matters most.
bool is_tight(const Problem& problem) {
  for (std::size_t r = 0; r < problem.limit.size(); ++r) {
    if (problem.limit[r] < problem.ranks * problem.whole_of(r)) return true;
  }
  return false;
}

bool continues_fewer(const Problem& problem) {
  return problem.microbatches > kFewerWorth * enough_microbatches(problem);
}

}  // namespace

PlacementPlan::PlacementPlan(const PlanRequest& request, const Placement& placement,
                             const std::function<double()>& seconds, double budget)
    : request_(request),
      placement_(placement),
      seconds_(seconds),
      budget_(budget),
      deadline_(budget),
      least_peak_(std::numeric_limits<double>::infinity()) {}

PlanResult PlacementPlan::run() {
  const Problem problem(request_.costs, placement_, request_.microbatches, request_.memory_limit);
  bound_ = lower_bound(problem);
  mean_work_ = problem.mean_least_work;
  result_.lower_bound_span = bound_;
  result_.lower_bound_bubble = std::max(0.0, 1 - mean_work_ / bound_);
  const double begin = seconds_();
  add_named();
  // Reserves as much time again to simulate the results of the search.
  deadline_ = budget_ -= std::min(0.5 * (budget_ - begin), seconds_() - begin);
  if (has_known_ && cancelled()) {
    result_.finished = false;  // a single trial may take longer than everything so far
  } else if (counts_buffers()) {
    plan_around_buffers();
  } else {
    plan_within(request_.memory_limit, 1, 0, 1);
  }
  take_best_named();
  if (result_.origin.empty()) consider(one_at_a_time(placement_, request_.microbatches), "one at a time");
  if (result_.origin.empty()) refuse();
  result_.finished = !cancelled() && result_.finished;
  if (request_.exact) solve_exactly_too();
  result_.proven = result_.proven || result_.simulation.span <= bound_ * (1 + kSame);
  return std::move(result_);
}

bool PlacementPlan::cancelled() const { return seconds_() > deadline_ || (request_.stop && request_.stop()); }

bool PlacementPlan::fits(const Simulation& simulation) const {
  return request_.memory_limit == 0 || simulation.peak_memory() <= request_.memory_limit + kMemoryMargin;
}

bool PlacementPlan::counts_buffers() const {
  const Costs& costs = request_.costs;
  return request_.memory_limit > 0 &&
         (costs.shard != Shard::kNone || std::any_of(costs.stages.begin(), costs.stages.end(),
                                                     [](const StageCosts& stage) { return stage.buffer_memory > 0; }));
}

/// The search does not count waiting messages, nor buffers of what replicas share: their memory is known after its
/// result is simulated. Short searches find how far below the limit the rest must stay.
void PlacementPlan::plan_around_buffers() {
  const double smallest = smallest_memory_limit(request_.costs, placement_);
  double limit = request_.memory_limit;
  double fitting = 0;  // largest limit on activations whose result fits, and smallest whose result does not
  double exceeding = std::numeric_limits<double>::infinity();
  const auto lower = [&](double excess) {
    exceeding = limit;
    limit = fitting > 0 ? (fitting + exceeding) / 2 : std::max(smallest, limit - excess);
  };
  for (int probe = 0; probe < kProbes && limit < exceeding && fitting < request_.memory_limit; ++probe) {
    const double part = kProbePart * probe / kProbes;
    const double excess = plan_within(limit, kProbeEffort, part, part + kProbePart / kProbes);
    if (excess > 0) {
      lower(excess);
    } else {
      fitting = limit;
      limit = (fitting + std::min(exceeding, request_.memory_limit)) / 2;
    }
  }
  limit = fitting > 0 ? fitting : std::max(smallest, limit);
  const double excess = plan_within(limit, kMainEffort, kProbePart, kProbePart + kMainEffort);
  if (excess <= 0) return;
  fitting = 0;
  lower(excess);
  plan_within(limit, 1 - kProbePart - kMainEffort, kProbePart + kMainEffort, 1);
}

/// Searches with `limit` on activations. Returns by how much the best schedule found exceeds the request's limit.
/// `begin` and `end` are the progress of the whole search before and after.
double PlacementPlan::plan_within(double limit, double effort, double begin, double end) {
  const Problem problem(request_.costs, placement_, request_.microbatches, limit);
  part_done_ = begin;
  part_per_effort_ = (end - begin) / effort;
  std::vector<Family> families = starting_points(problem);
  const Problem fewer(request_.costs, placement_, std::min(problem.microbatches, enough_microbatches(problem)), limit);
  double left = effort;
  SearchResult found;
  if (continues_fewer(problem)) {
    continue_fewer(families, fewer, problem, effort);
    left -= kFewerShare * effort;
  } else {
    deadline_ = seconds_() + kFirstShare * (budget_ - seconds_());
    found = race(problem, families, kFirstShare * effort, 0);
    add_finalists(families, found);
    left -= kFirstShare * effort;
  }
  result_.finished = result_.finished && !cancelled();
  deadline_ = budget_;
  if (found.best.empty() || !cancelled()) found = race(problem, families, left, 1);
  return polished(problem, found.best, effort);
}

/// Searches with fewer microbatches, which is faster, and extends the results by repeating their middle.
void PlacementPlan::continue_fewer(std::vector<Family>& families, const Problem& fewer, const Problem& problem,
                                   double effort) {
  std::vector<Family> starts = starting_points(fewer);
  const double begin = seconds_();
  Dispatcher dispatcher(fewer);
  for (const double share : {kFirstShare, kFewerShare - kFirstShare}) {
    const bool first = share == kFirstShare;
    // Leaves time for the search that continues the results.
    deadline_ = begin + (first ? kFirstShare : kFewerShare) * (budget_ - begin);
    const SearchResult found = race(fewer, starts, share * effort, first ? 0 : 1);
    result_.finished = result_.finished && !cancelled();
    add_finalists(starts, found);
    for (const Candidate& candidate : found.best) {
      dispatcher.run(candidate.policy);
      Policy exact = candidate.policy;
      exact.due = dispatcher.starts();
      families.push_back(extensions_of(exact, fewer, problem));
      families.push_back(extensions_of(candidate.policy, fewer, problem));
    }
    for (const Block& block : found.blocks) families.push_back(family_of(problem, block));
  }
}

/// Policies of the plain block and of every known schedule of this placement.
std::vector<Family> PlacementPlan::starting_points(const Problem& problem) const {
  // The plain block has unlimited slack, so it always gives a schedule, however small the memory limit.
  std::vector<Family> families = {variants_of(problem, policy_of(problem, Block()))};
  for_each_known_schedule(placement_, problem.microbatches, [&](const Schedule& schedule) {
    const Simulation simulation = simulate(schedule, request_.costs, {.keep_times = true});
    families.push_back(variants_of(problem, policy_from(problem, schedule, simulation)));
    return !cancelled();
  });
  return families;
}

SearchResult PlacementPlan::race(const Problem& problem, const std::vector<Family>& families, double effort,
                                 std::uint64_t number) {
  SearchOptions options;
  options.seed = 2 * request_.seed + number;
  options.effort = effort * request_.effort * std::min(kEffort, kMostTrials * parts_of(problem));
  options.threads = std::min(
      kMostThreads, request_.threads > 0 ? request_.threads : static_cast<int>(std::thread::hardware_concurrency()));
  options.lower_bound = lower_bound(problem);
  options.more_microbatches = request_.microbatches - problem.microbatches;
  // The families already include blocks found with fewer microbatches.
  options.block_share = continues_fewer(problem) ? 0 : is_tight(problem) ? kTightBlockShare : kBlockShare;
  options.cancelled = [this] { return cancelled(); };
  options.progress = [&, begin = part_done_](double span, double part) {
    part_done_ = begin + part_per_effort_ * effort * part;
    if (!request_.progress) return;
    const double work = mean_work_ * problem.microbatches / request_.microbatches;
    request_.progress({.placement = std::string(placement_.style()),
                       .part = part_done_,
                       .span = span,
                       .bubble = 1 - work / span,
                       .lower_bound = options.lower_bound,
                       .seconds = seconds_()});
  };
  if (request_.improved && problem.microbatches == request_.microbatches) {
    options.improved = [&](const Policy& policy) {
      Dispatcher dispatcher(problem);
      dispatcher.run(policy);
      const Schedule schedule = to_schedule(placement_, problem.microbatches, dispatcher.rows());
      show(schedule, simulate(schedule, request_.costs));
    };
  }
  SearchResult found = search(problem, families, options);
  result_.trials += found.trials;
  return found;
}

void PlacementPlan::show(const Schedule& schedule, const Simulation& simulation) const {
  if (request_.improved && fits(simulation)) request_.improved(schedule, simulation);
}

double PlacementPlan::polished(const Problem& problem, const std::vector<Candidate>& candidates, double effort) {
  double excess = std::numeric_limits<double>::infinity();
  Dispatcher dispatcher(problem);
  const double trials = std::min(kMostPolish, kPolishEffort / parts_of(problem)) *
                        std::min(1.0, 10 * effort * request_.effort) / kPolished;
  for (std::size_t i = 0; i < std::min(kPolished, candidates.size()); ++i) {
    if (i > 0 && cancelled()) break;
    dispatcher.run(candidates[i].policy);
    std::vector<StepRow> rows = dispatcher.rows();
    polish(problem, rows, request_.seed, static_cast<std::int64_t>(trials), bound_, [this] { return cancelled(); });
    excess = std::min(excess, consider(to_schedule(placement_, problem.microbatches, rows), "search"));
  }
  return excess;
}

/// Simulates the schedule and keeps it if it is the best that fits. Returns by how much it exceeds the memory limit, or
/// 0 if it fits.
double PlacementPlan::consider(Schedule schedule, const std::string& origin) {
  require_valid(schedule);
  Simulation simulation = simulate(schedule, request_.costs);
  const double peak = simulation.peak_memory();
  least_peak_ = std::min(least_peak_, peak);
  if (!fits(simulation)) return peak - request_.memory_limit;
  if (!result_.origin.empty() && simulation.span >= result_.simulation.span * (1 - 1e-12)) return 0;
  result_.schedule = std::move(schedule);
  result_.simulation = std::move(simulation);
  result_.origin = origin;
  show(result_.schedule, result_.simulation);
  return 0;
}

void PlacementPlan::add_named() {
  for_each_known_schedule(placement_, request_.microbatches, [&](const Schedule& schedule) {
    Simulation simulation = simulate(schedule, request_.costs);
    least_peak_ = std::min(least_peak_, simulation.peak_memory());
    const bool fitting = fits(simulation);
    has_known_ = has_known_ || fitting;
    show(schedule, simulation);
    result_.named.push_back({schedule.name, std::move(simulation), fitting});
    return !has_known_ || !cancelled();
  });
}

/// Takes the best known schedule if it beats the search, as it may with full backwards and overlaps.
void PlacementPlan::take_best_named() {
  for (const NamedOutcome& named : result_.named) {
    const bool better = result_.origin.empty() || named.simulation.span < result_.simulation.span * (1 - 1e-12);
    if (!named.fits || !better) continue;
    const Shape shape{.ranks = placement_.ranks(),
                      .stages_per_rank = placement_.stages() / placement_.ranks(),
                      .microbatches = request_.microbatches};
    result_.schedule = make_schedule(named.name, shape);
    result_.simulation = named.simulation;
    result_.origin = named.name;
  }
}

void PlacementPlan::solve_exactly_too() {
  const double left = std::max(1.0, budget_ - seconds_());
  ExactResult exact = solve_exactly(request_.costs, placement_, request_.microbatches, request_.memory_limit,
                                    result_.simulation.span, left);
  result_.proven = exact.proven;
  if (fits(exact.simulation) && exact.simulation.span < result_.simulation.span * (1 - 1e-6)) {
    result_.schedule = std::move(exact.schedule);
    result_.simulation = std::move(exact.simulation);
    result_.origin = "exact";
  }
  if (!result_.proven) return;
  result_.lower_bound_span = result_.simulation.span;
  result_.lower_bound_bubble = result_.simulation.bubble_span();
}

void PlacementPlan::refuse() const {
  throw InfeasibleLimit(
      fmt::format("no schedule was found that keeps a memory limit of {}, messages that wait included: the smallest "
                  "peak of all that were tried is {}; give at least that{}",
                  memory_text(request_.costs, request_.memory_limit), memory_text(request_.costs, least_peak_),
                  request_.costs.has_more_than_activations() ? "; " + remedies(request_, placement_) : ""),
      least_peak_);
}

}  // namespace stagecraft::detail
