// The examples that `stagecraft costs` writes.

#include "stagecraft/sim/cost_file.h"

namespace stagecraft {

std::string example_costs() {
  Costs costs;
  // One entry for all stages, so that the example fits any number of stages and any number of ranks from 2 on.
  const StageCosts stage{.forward = 18.5,
                         .backward_input = 18.1,
                         .backward_weight = 9.3,
                         .backward = 27.4,
                         .optimizer = 4.0,
                         .unshard = 0.0,
                         .reduce_grad = 0.0,
                         .activation_memory = 1.0,
                         .weight_gradient_memory = 0.6,
                         .buffer_memory = 0.1,
                         .forward_bytes = 8e6,
                         .backward_bytes = 8e6};
  costs.stages = {stage};
  costs.link = {.latency = 0.2, .bandwidth = 2e7};
  costs.links = {{.from = RankId(0), .to = RankId(1), .costs = {.latency = 0.4, .bandwidth = 1e7}}};
  costs.rank_slowdown = {1.0};
  costs.replica_link = {.latency = 0.2, .bandwidth = 1e7};
  return costs_to_json(costs);
}

std::string example_costs_in_bytes() {
  constexpr double kParameters = 1.2e9;
  constexpr double kMessage = 2.0 * 4 * 2048 * 4096;  // bfloat16: 4 sequences of 2048 tokens, 4096 numbers each
  Costs costs;
  costs.stages = {StageCosts{.forward = 18.5,
                             .backward_input = 18.1,
                             .backward_weight = 9.3,
                             .backward = 27.4,
                             .optimizer = 4.0,
                             .activation_memory = 34 * kMessage,
                             .weight_gradient_memory = 20 * kMessage,
                             .buffer_memory = kMessage,
                             .forward_bytes = kMessage,
                             .backward_bytes = kMessage,
                             .parameter_memory = 2 * kParameters,
                             .master_memory = 4 * kParameters,
                             .gradient_memory = 4 * kParameters,
                             .optimizer_memory = 8 * kParameters,
                             .input_memory = kMessage}};
  costs.link = {.latency = 0.02, .bandwidth = 5e7};
  costs.replicas = 4;
  costs.shard = Shard::kOptimizer;
  costs.replica_link = {.latency = 0.05, .bandwidth = 1e8};
  costs.memory_in_bytes = true;
  return costs_to_json(costs);
}

}  // namespace stagecraft
