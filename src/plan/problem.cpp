#include "problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "stagecraft/sim/memory_model.h"

namespace stagecraft::detail {
namespace {

/// A message from one stage to a neighbour.
struct Hop {
  double time = 0;
  double transfer = 0;
};

Hop hop(const Costs& costs, const Placement& placement, StageId from, StageId to, double bytes) {
  if (!placement.contains(to) || placement.share_rank(from, to)) return {};
  const LinkCosts link = costs.between(placement.rank_of(from), placement.rank_of(to));
  const double transfer = link.bandwidth > 0 ? bytes / link.bandwidth : 0;
  return {.time = link.latency + transfer, .transfer = transfer};
}

}  // namespace

Problem::Problem(const Costs& costs, const Placement& where, int microbatches_in, double memory_limit)
    : placement(where),
      ranks(where.ranks()),
      stages(where.stages()),
      microbatches(microbatches_in),
      hold_up_sender(!costs.overlap_communication),
      stages_of(static_cast<std::size_t>(where.ranks())),
      work(static_cast<std::size_t>(where.ranks())),
      least_work(work.size()) {
  const ActionCosts action_costs(costs, where);
  std::map<std::pair<int, int>, int> numbers;
  const auto link_between = [&](int from, int to) {
    return numbers.emplace(std::pair{from, to}, static_cast<int>(numbers.size())).first->second;
  };
  for (int s = 0; s < stages; ++s) {
    const StageId stage(s);
    const StageCosts& given = costs.of(stage);
    const int rank = where.rank_of(stage).value;
    rank_of.push_back(rank);
    lap.push_back(where.local_index(stage));
    forward.push_back(action_costs.of(ActionKind::kForward, stage));
    least_input.push_back(action_costs.of(ActionKind::kBackwardInput, stage));
    input.push_back(least_input.back() + (given.recompute ? forward.back() : 0));
    weight.push_back(action_costs.of(ActionKind::kBackwardWeight, stage));
    least_activation.push_back(given.recompute ? std::min(given.input_memory, given.activation_memory)
                                               : given.activation_memory);
    activation.push_back(
        std::max(given.recompute ? given.input_memory : given.activation_memory, given.weight_gradient_memory));
    weight_gradient.push_back(given.weight_gradient_memory);
    const Hop up = hop(costs, where, stage, stage + 1, given.forward_bytes);
    const Hop down = hop(costs, where, stage, stage - 1, given.backward_bytes);
    hop_up.push_back(up.time);
    hop_down.push_back(down.time);
    transfer_up.push_back(up.transfer);
    transfer_down.push_back(down.transfer);
    link_up.push_back(link_between(rank, where.contains(stage + 1) ? where.rank_of(stage + 1).value : rank));
    link_down.push_back(link_between(rank, where.contains(stage - 1) ? where.rank_of(stage - 1).value : rank));
    stages_of[static_cast<std::size_t>(rank)].push_back(s);
    work[static_cast<std::size_t>(rank)] += microbatches * (forward.back() + input.back() + weight.back());
    least_work[static_cast<std::size_t>(rank)] += microbatches * (forward.back() + least_input.back() + weight.back());
  }
  links = numbers.size();
  mean_work = std::accumulate(work.begin(), work.end(), 0.0) / ranks;
  mean_least_work = std::accumulate(least_work.begin(), least_work.end(), 0.0) / ranks;
  unit = *std::max_element(work.begin(), work.end()) / microbatches;
  reserve.assign(static_cast<std::size_t>(stages), 0);
  whole.assign(static_cast<std::size_t>(stages), 0);
  for (const std::vector<int>& own : stages_of) {
    double later = 0;
    for (std::size_t i = own.size(); i-- > 0;) {
      reserve[static_cast<std::size_t>(own[i])] = later;
      later += activation[static_cast<std::size_t>(own[i])];
    }
    if (!own.empty()) whole[static_cast<std::size_t>(own.back())] = later;
  }
  set_limits(costs, memory_limit > 0 ? memory_limit : std::numeric_limits<double>::infinity());
}

void Problem::set_limits(const Costs& costs, double memory_limit) {
  limit.assign(work.size(), memory_limit);
  most_limit = limit;
  if (!costs.has_more_than_activations() || !std::isfinite(memory_limit)) return;
  for (std::size_t r = 0; r < limit.size(); ++r) {
    const double least = whole_of(r);
    // The search needs room for one microbatch; whether that is within the limit is seen when it is simulated.
    limit[r] = std::max(
        memory_limit - most_other_memory(costs, placement, RankId(r)).total() - briefly(costs, stages_of[r]), least);
    most_limit[r] = std::max(memory_limit - resident_memory(costs, placement, RankId(r)).total(), least);
  }
}

/// What one action of the rank holds beyond the activations of its stage between actions: all activations of a stage
/// that drops them, and gradients of one microbatch that are added to others of another type.
double Problem::briefly(const Costs& costs, const std::vector<int>& own) const {
  double most = 0;
  double gradients = 0;
  for (const int stage : own) {
    const StageCosts& given = costs.of(StageId(stage));
    most = std::max(most, given.activation_memory - activation[static_cast<std::size_t>(stage)]);
    if (given.is_mixed()) gradients = std::max(gradients, given.parameter_memory);
  }
  return most + gradients;
}

Schedule to_schedule(const Placement& placement, int microbatches, const std::vector<StepRow>& rows) {
  constexpr std::array kKinds = {ActionKind::kForward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight};
  Schedule schedule{"planned", placement, microbatches, {}};
  for (const StepRow& steps : rows) {
    Row& row = schedule.rows.emplace_back();
    row.reserve(steps.size());
    for (const Step& step : steps) {
      row.emplace_back(kKinds[static_cast<std::size_t>(step.part)], StageId(step.stage), MicrobatchId(step.microbatch));
    }
  }
  return schedule;
}

}  // namespace stagecraft::detail
