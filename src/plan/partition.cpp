#include "stagecraft/plan/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "placement_plan.h"
#include "stagecraft/core/balance.h"
#include "stagecraft/core/measurement.h"
#include "stagecraft/plan/exact.h"

namespace stagecraft {
namespace {

constexpr double kQuickEffort = 5e-4;    // share of the effort for a plan that compares partitions
constexpr double kMostQuickParts = 2e4;  // parts of a schedule above which comparing takes too long
constexpr int kMostMoves = 40;
constexpr double kLeastTime = 1e-3;   // seconds given to a plan when the budget is spent
constexpr double kMostCutWork = 4e9;  // limit on stages * layers^2: some seconds

double work_of(const StageCosts& costs) { return costs.forward + costs.backward_input + costs.backward_weight; }

/// The largest work of any rank, and the sum of squares to break ties.
std::pair<double, double> load_of(const std::vector<double>& sums, const Cuts& cuts, const Placement& placement,
                                  const Costs& costs) {
  std::vector<double> loads(static_cast<std::size_t>(placement.ranks()));
  for (int s = 0; s < placement.stages(); ++s) {
    const RankId rank = placement.rank_of(StageId(s));
    const auto at = static_cast<std::size_t>(s);
    loads[rank.index()] += costs.slowdown(rank) *
                           (sums[static_cast<std::size_t>(cuts[at + 1])] - sums[static_cast<std::size_t>(cuts[at])]);
  }
  double squares = 0;
  for (const double load : loads) squares += load * load;
  return {*std::max_element(loads.begin(), loads.end()), squares};
}

/// Whether the cut before stage s can move by `step` layers without emptying a stage.
bool can_move(const Cuts& cuts, std::size_t s, int step) {
  return cuts[s] + step > cuts[s - 1] && cuts[s] + step < cuts[s + 1];
}

}  // namespace

Costs costs_of_stages(const std::vector<Layer>& layers, const Cuts& cuts, const Costs& costs) {
  const bool ascending = cuts.size() >= 2 && cuts.front() == 0 && cuts.back() == static_cast<int>(layers.size()) &&
                         std::adjacent_find(cuts.begin(), cuts.end(), std::greater_equal<>()) == cuts.end();
  if (!ascending) {
    throw InvalidArgument(fmt::format("cuts must ascend from 0 to the number of layers, {}", layers.size()));
  }
  const auto differs = [&](const Layer& layer) { return layer.costs.recompute != layers.front().costs.recompute; };
  if (std::any_of(layers.begin(), layers.end(), differs)) {
    throw InvalidArgument(
        "recompute is true for some layers and false for others: a stage drops all its activations or none, so give it "
        "to all layers or to none");
  }
  Costs result = costs;
  result.stages.clear();
  for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
    StageCosts stage{.forward = 0,
                     .backward_input = 0,
                     .backward_weight = 0,
                     .backward = 0,
                     .activation_memory = 0,
                     .weight_gradient_memory = 0};
    for (int l = cuts[s]; l < cuts[s + 1]; ++l) {
      const StageCosts& layer = layers[static_cast<std::size_t>(l)].costs;
      for (const auto field :
           {&StageCosts::forward, &StageCosts::backward_input, &StageCosts::backward_weight, &StageCosts::backward,
            &StageCosts::optimizer, &StageCosts::unshard, &StageCosts::reduce_grad, &StageCosts::activation_memory,
            &StageCosts::weight_gradient_memory, &StageCosts::parameter_memory, &StageCosts::master_memory,
            &StageCosts::gradient_memory, &StageCosts::optimizer_memory, &StageCosts::unshard_memory,
            &StageCosts::reduce_memory}) {
        stage.*field += layer.*field;
      }
    }
    const StageCosts& first = layers[static_cast<std::size_t>(cuts[s])].costs;
    stage.input_memory = first.input_memory;
    stage.recompute = first.recompute;
    stage.buffer_memory = first.buffer_memory;
    stage.backward_bytes = first.backward_bytes;
    stage.forward_bytes = layers[static_cast<std::size_t>(cuts[s + 1]) - 1].costs.forward_bytes;
    result.stages.push_back(stage);
  }
  return result;
}

Cuts balanced_cuts(const std::vector<Layer>& layers, const Placement& placement, const Costs& costs) {
  if (static_cast<int>(layers.size()) < placement.stages()) {
    throw InvalidArgument(
        fmt::format("{} layers cannot make {} stages: every stage has at least one, so use fewer ranks or "
                    "fewer stages per rank",
                    layers.size(), placement.stages()));
  }
  const auto count = static_cast<double>(layers.size());
  if (placement.stages() * count * count > kMostCutWork) {
    throw InvalidArgument(fmt::format(
        "{} layers are too many to be cut into {} stages, the most is {:.0f}: join layers that stay together",
        layers.size(), placement.stages(), std::floor(std::sqrt(kMostCutWork / placement.stages()))));
  }
  std::vector<double> works;
  std::vector<double> sums = {0};  // of the work of the layers before each
  for (const Layer& layer : layers) {
    works.push_back(work_of(layer.costs));
    sums.push_back(sums.back() + works.back());
  }
  std::vector<double> slowdowns;  // by stage
  for (const RankId rank : placement.ranks_of_stages()) slowdowns.push_back(costs.slowdown(rank));
  Cuts cuts;
  for (const std::size_t cut : min_max_cuts(works, slowdowns)) cuts.push_back(static_cast<int>(cut));
  // With several stages per rank, the rank's sum matters: move single layers while that improves the balance.
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t s = 1; s + 1 < cuts.size(); ++s) {
      for (const int step : {-1, 1}) {
        if (!can_move(cuts, s, step)) continue;
        Cuts moved = cuts;
        moved[s] += step;
        if (load_of(sums, moved, placement, costs) >= load_of(sums, cuts, placement, costs)) continue;
        cuts = std::move(moved);
        changed = true;
      }
    }
  }
  return cuts;
}

PartitionPlan plan_partition(const std::vector<Layer>& layers, const PlanRequest& request) {
  PlanRequest quick = request;
  quick.effort = kQuickEffort * request.effort;
  quick.exact = false;
  quick.progress = nullptr;
  PartitionPlan best;
  double best_span = std::numeric_limits<double>::infinity();
  const double start = seconds_now();
  const auto left = [&] { return request.time_budget - (seconds_now() - start); };
  // An invalid budget is passed on unchanged, for `plan` to refuse.
  const auto budget = [&](double share) {
    return request.time_budget > 0 ? std::max(kLeastTime, share * left()) : request.time_budget;
  };
  bool finished = true;
  for (const Placement& placement : detail::placements_of(request)) {
    quick.placement = request.placement == PlacementChoice::kAny
                          ? (placement.style() == "v" ? PlacementChoice::kV : PlacementChoice::kLoop)
                          : request.placement;
    quick.stages_per_rank = placement.stages() / placement.ranks();
    if (request.exact) check_exact_size(placement, request.microbatches);
    const auto span_of = [&](const Cuts& cuts) {
      quick.costs = costs_of_stages(layers, cuts, request.costs);
      quick.time_budget = budget(0.5);
      return plan(quick).simulation.span;
    };
    Cuts cuts = balanced_cuts(layers, placement, request.costs);
    double span = span_of(cuts);
    const double parts = 3.0 * placement.stages() * request.microbatches;
    int moves = parts <= kMostQuickParts ? kMostMoves : 0;
    for (bool changed = true; changed && moves > 0;) {
      changed = false;
      for (std::size_t s = 1; s + 1 < cuts.size() && moves > 0; ++s) {
        for (const int step : {-1, 1}) {
          if (!can_move(cuts, s, step)) continue;
          if (left() < request.time_budget / 2) {  // the rest of the time is for the final plan
            finished = false;
            moves = 0;
            break;
          }
          Cuts moved = cuts;
          moved[s] += step;
          --moves;
          const double other = span_of(moved);
          if (other >= span * (1 - detail::kSame)) continue;
          span = other;
          cuts = std::move(moved);
          changed = true;
        }
      }
    }
    if (span >= best_span) continue;
    best_span = span;
    best.cuts = cuts;
    best.costs = costs_of_stages(layers, cuts, request.costs);
    quick.costs = best.costs;
    best.plan.schedule.placement = placement;
  }
  PlanRequest full = request;
  full.costs = best.costs;
  full.stages_per_rank = best.plan.schedule.placement.stages() / request.ranks;
  if (request.placement == PlacementChoice::kAny) {
    full.placement = best.plan.schedule.placement.style() == "v" ? PlacementChoice::kV : PlacementChoice::kLoop;
  }
  full.time_budget = budget(1);
  best.plan = plan(full);
  best.plan.finished = best.plan.finished && finished;
  return best;
}

}  // namespace stagecraft
