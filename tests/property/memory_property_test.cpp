// Memory and time with replicas, sharding and recompute, over generated schedules and random costs.

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "generated_schedule.h"
#include "random_schedule.h"
#include "stagecraft/passes/pass.h"
#include "stagecraft/sim/what_if.h"

namespace stagecraft::property {
namespace {

double whole_number(int low, int high) { return *uniform(low, high); }

/// Times above 0 and whole numbers of memory, whose sums are exact in any order. No replicas, no recompute.
Costs random_costs(int stages) {
  Costs costs;
  costs.stages.clear();
  for (int s = 0; s < stages; ++s) {
    StageCosts stage{.forward = whole_number(1, 9), .backward_input = whole_number(1, 9)};
    stage.backward_weight = whole_number(1, 9);
    stage.backward = whole_number(1, 18);
    stage.activation_memory = whole_number(0, 20);
    stage.weight_gradient_memory = whole_number(0, 20);
    stage.buffer_memory = whole_number(0, 3);
    costs.stages.push_back(stage);
  }
  costs.link.latency = whole_number(0, 3);
  return costs;
}

void add_parameters(Costs& costs) {
  for (StageCosts& stage : costs.stages) {
    stage.parameter_memory = whole_number(0, 16);
    stage.master_memory = whole_number(1, 32);
    stage.gradient_memory = whole_number(0, 16);
    stage.optimizer_memory = whole_number(0, 32);
    stage.input_memory = whole_number(0, static_cast<int>(stage.activation_memory));
  }
}

Schedule any_schedule() {
  const bool is_known = *uniform(0, 1) == 1;
  Schedule schedule = is_known ? generated(*generator_calls(5, 8)) : random_schedule(*random_shapes(4, 6, 6));
  if (*uniform(0, 1) == 1) run_passes(schedule);
  return schedule;
}

/// Replicas without costs of their own take the long way through the simulator.
RC_GTEST_PROP(MemoryProperty, WithoutNewCostsAllIsAsBefore, ()) {
  const Schedule schedule = any_schedule();
  const Costs plain = random_costs(schedule.stages());
  const Costs again = with_replicas(plain, *uniform(2, 5), *rc::gen::element(Shard::kNone, Shard::kParameters));
  const SimulationOptions options{.keep_times = true, .keep_memory = true};
  const Simulation before = simulate(schedule, plain, options);
  const Simulation after = simulate(schedule, again, options);
  RC_ASSERT(before.makespan == after.makespan);
  RC_ASSERT(before.span == after.span);
  for (std::size_t r = 0; r < before.ranks.size(); ++r) {
    RC_ASSERT(before.ranks[r].peak_memory == after.ranks[r].peak_memory);
    RC_ASSERT(before.ranks[r].busy == after.ranks[r].busy);
    if (!before.memory[r].empty()) {  // not with || inside: RC_ASSERT would evaluate both sides
      RC_ASSERT(before.memory[r].back().memory == after.memory[r].back().memory);
    }
    RC_ASSERT(before.times[r].size() == after.times[r].size());
    for (std::size_t i = 0; i < before.times[r].size(); ++i) {
      if (!is_compute(schedule.rows[r][i].kind())) continue;
      RC_ASSERT(before.times[r][i].start == after.times[r][i].start);
      RC_ASSERT(before.times[r][i].end == after.times[r][i].end);
    }
  }
}

/// Masters are apart from the parameters in any case here, and nothing is copied while it is reduced. But replicas that
/// share have a part of a stage's gradients beside the whole while they reduce it.
RC_GTEST_PROP(MemoryProperty, SharingMoreHoldsLess, ()) {
  const Schedule schedule = any_schedule();
  Costs costs = random_costs(schedule.stages());
  add_parameters(costs);
  const int replicas = *uniform(2, 5);
  std::vector<double> last(schedule.rows.size(), std::numeric_limits<double>::infinity());
  for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
    const Simulation simulation = simulate(schedule, with_replicas(costs, replicas, shard));
    for (std::size_t r = 0; r < last.size(); ++r) {
      const double peak = simulation.ranks[r].peak_memory;
      double part = 0;
      for (const StageId stage : schedule.placement.stages_of(RankId(r))) {
        part = std::max(part, costs.of(stage).gradient_memory / replicas);
      }
      RC_ASSERT(peak <= (last[r] + (shard == Shard::kOptimizer ? part : 0)) * (1 + 1e-12));
      RC_ASSERT(std::abs(peak - simulation.ranks[r].at_peak.total()) <= 1e-9);
      last[r] = peak;
    }
  }
}

RC_GTEST_PROP(MemoryProperty, RecomputeHoldsNoMoreAndTakesNoLess, ()) {
  const Schedule schedule = any_schedule();
  Costs costs = random_costs(schedule.stages());
  add_parameters(costs);
  costs.stages.front().input_memory += 1;  // some stage has an input
  costs.stages.front().activation_memory += 1;
  for (StageCosts& stage : costs.stages) stage.buffer_memory = 0;  // messages come at other times
  const Simulation before = simulate(schedule, costs);
  const Simulation after = simulate(schedule, with_recompute(costs, true));
  RC_ASSERT(after.makespan >= before.makespan);
  for (std::size_t r = 0; r < before.ranks.size(); ++r) {
    RC_ASSERT(after.ranks[r].peak_memory <= before.ranks[r].peak_memory);
    RC_ASSERT(after.ranks[r].busy >= before.ranks[r].busy);
  }
}

/// Communication beside compute ends no step earlier, and the ranks compute as much.
RC_GTEST_PROP(MemoryProperty, CommunicationOnlyDelays, ()) {
  const Schedule schedule = any_schedule();
  Costs costs = random_costs(schedule.stages());
  add_parameters(costs);
  costs = with_replicas(costs, *uniform(2, 5), *rc::gen::element(Shard::kNone, Shard::kGradients, Shard::kParameters));
  const Simulation free = simulate(schedule, costs);
  costs.replica_link = {.latency = whole_number(0, 2), .bandwidth = whole_number(1, 8)};
  const Simulation slow = simulate(schedule, costs);
  RC_ASSERT(slow.makespan >= free.makespan);
  RC_ASSERT(slow.hidden_communication() >= 0);
  for (std::size_t r = 0; r < free.ranks.size(); ++r) {
    RC_ASSERT(std::abs(slow.ranks[r].busy - free.ranks[r].busy) <= 1e-9 * free.ranks[r].busy);
    RC_ASSERT(slow.ranks[r].exposed <= slow.ranks[r].communication + 1e-9);
  }
}

}  // namespace
}  // namespace stagecraft::property
