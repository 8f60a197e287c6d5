#include "feasibility.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "problem.h"
#include "seeds.h"
#include "stagecraft/sim/memory_model.h"
#include "stagecraft/sim/what_if.h"

namespace stagecraft::detail {
namespace {

constexpr int kFew = 2;  // microbatches: the second finds the gradients of the first
constexpr std::array kReplicas = {2, 4, 8, 16, 32, 64};

class Remedies {
 public:
  Remedies(const PlanRequest& request, const Placement& placement)
      : costs_(request.costs),
        placement_(placement),
        limit_(request.memory_limit),
        microbatches_(request.microbatches),
        can_recompute_(can_recompute(request.costs)) {}

  /// The mildest choices first: sharding takes the least time, recompute a third of a step.
  std::vector<std::string> find() const {
    std::vector<std::string> found;
    const auto add = [&](const std::optional<std::string>& choice) {
      if (choice) found.push_back(*choice);
    };
    add(first_shard(costs_, ""));
    if (can_recompute_) {
      const Costs again = with_recompute(costs_, true);
      add(tried(again, "recompute"));
      if (found.empty()) add(first_shard(again, " and recompute"));
    }
    if (found.empty() && costs_.replicas == 1) add(more_replicas());
    return found;
  }

 private:
  static bool can_recompute(const Costs& costs) {
    const auto some = [&](auto&& what) { return std::any_of(costs.stages.begin(), costs.stages.end(), what); };
    return some([](const StageCosts& stage) { return stage.input_memory > 0; }) &&
           some([](const StageCosts& stage) { return !stage.recompute; });
  }

  [[nodiscard]] std::optional<std::string> tried(const Costs& costs, const std::string& what) const {
    const double least = least_memory(costs, placement_, microbatches_);
    if (least > limit_ + kMemoryMargin) return std::nullopt;
    return fmt::format("{} needs {}", what, memory_text(costs, least));
  }

  [[nodiscard]] std::optional<std::string> first_shard(const Costs& costs, const std::string& more) const {
    if (costs.replicas == 1) return std::nullopt;
    for (const Shard shard : {Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
      if (shard <= costs.shard) continue;
      const Costs changed = with_replicas(costs, costs.replicas, shard);
      if (auto choice = tried(changed, fmt::format("shard {}{}", shard_name(shard), more))) return choice;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<std::string> more_replicas() const {
    const Costs base = can_recompute_ ? with_recompute(costs_, true) : costs_;
    for (const int replicas : kReplicas) {
      const std::string what =
          fmt::format("shard parameters{} with {} replicas", can_recompute_ ? " and recompute" : "", replicas);
      if (auto choice = tried(with_replicas(base, replicas, Shard::kParameters), what)) return choice;
    }
    return std::nullopt;
  }

  const Costs& costs_;
  const Placement& placement_;
  double limit_;
  int microbatches_;
  bool can_recompute_;
};

/// "rank 3: parameters 4, gradients 4, optimizer 8, activations 2".
std::string largest_rank(const Costs& costs, const Simulation& simulation) {
  const auto most = std::max_element(simulation.ranks.begin(), simulation.ranks.end(),
                                     [](const auto& a, const auto& b) { return a.peak_memory < b.peak_memory; });
  const MemoryParts& parts = most->at_peak;
  return fmt::format("rank {}: parameters {}, gradients {}, optimizer {}, activations {}",
                     most - simulation.ranks.begin(), memory_text(costs, parts.parameters),
                     memory_text(costs, parts.gradients), memory_text(costs, parts.optimizer),
                     memory_text(costs, parts.activations));
}

Simulation simulate_least(const Costs& costs, const Placement& placement, int microbatches) {
  return simulate(one_at_a_time(placement, std::min(microbatches, kFew)), costs);
}

/// Whether the costs tell more of memory than the number of activations.
bool knows_more(const Costs& costs) {
  return costs.memory_in_bytes || costs.has_more_than_activations() ||
         std::any_of(costs.stages.begin(), costs.stages.end(), [](const StageCosts& s) { return s.input_memory > 0; });
}

}  // namespace

double least_memory(const Costs& costs, const Placement& placement, int microbatches) {
  if (costs.has_more_than_activations()) return simulate_least(costs, placement, microbatches).peak_memory();
  const Problem problem(costs, placement, 1, 0);
  return *std::max_element(problem.whole.begin(), problem.whole.end());
}

std::string remedies(const PlanRequest& request, const Placement& placement) {
  const std::vector<std::string> found = Remedies(request, placement).find();
  if (found.empty()) return "neither sharding nor recompute would do: use more ranks, or smaller microbatches";
  return fmt::format("within the limit: {}", fmt::join(found, ", "));
}

void check_limit(const PlanRequest& request, const Placement& placement) {
  if (request.memory_limit == 0) return;
  const Costs& costs = request.costs;
  const double smallest = least_memory(costs, placement, request.microbatches);
  if (request.memory_limit >= smallest - kMemoryMargin) return;
  if (!knows_more(costs)) {
    throw InfeasibleLimit(
        fmt::format(
            "a memory limit of {:g} is too small: a rank holds a microbatch's activations in all its stages before "
            "the first of them can go, which is {:g} here; give at least that",
            request.memory_limit, smallest),
        smallest);
  }
  throw InfeasibleLimit(
      fmt::format("a memory limit of {} is too small by {}: one microbatch at a time needs {} ({}); {}",
                  memory_text(costs, request.memory_limit), memory_text(costs, smallest - request.memory_limit),
                  memory_text(costs, smallest),
                  largest_rank(costs, simulate_least(costs, placement, request.microbatches)),
                  remedies(request, placement)),
      smallest);
}

}  // namespace stagecraft::detail
