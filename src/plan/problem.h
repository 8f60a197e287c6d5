#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/sim/costs.h"

namespace stagecraft::detail {

/// The kinds of compute that the planner orders: F, I and W.
enum class Part : std::uint8_t { kForward, kInput, kWeight };

/// Costs for one placement, number of microbatches and memory limit, in flat arrays for the planner's inner loops.
struct Problem {
  Problem(const Costs& costs, const Placement& where, int microbatches_in, double memory_limit);

  [[nodiscard]] double cost(Part part, std::size_t stage) const {
    return part == Part::kForward ? forward[stage] : part == Part::kInput ? input[stage] : weight[stage];
  }
  /// Whether a message from one stage to the other keeps its sender waiting.
  [[nodiscard]] bool holds_up(std::size_t from, std::size_t to) const {
    return hold_up_sender && rank_of[from] != rank_of[to];
  }

  Placement placement;
  int ranks;
  int stages;
  int microbatches;
  double limit;         ///< Memory limit of every rank; infinite if there is none.
  bool hold_up_sender;  ///< Whether a rank waits until its message has arrived.
  std::size_t links = 0;

  // Per stage.
  std::vector<int> rank_of;
  std::vector<int> lap;  ///< Index of the stage among the stages of its rank.
  std::vector<double> forward;
  std::vector<double> input;
  std::vector<double> weight;
  std::vector<double> activation;        ///< Memory taken by F; at least what I leaves.
  std::vector<double> least_activation;  ///< Memory taken by F, as the costs say.
  std::vector<double> weight_gradient;   ///< Memory held from I to W.
  std::vector<double> hop_up;            ///< Message time to the next stage, 0 within a rank.
  std::vector<double> hop_down;          ///< Message time to the previous stage.
  std::vector<double> transfer_up;       ///< The part of it that occupies the link.
  std::vector<double> transfer_down;
  std::vector<int> link_up;  ///< Directed link of the message; unused within a rank.
  std::vector<int> link_down;
  /// Memory for one microbatch in each later stage of the rank. Microbatches that still have later stages on the rank
  /// must leave it free; otherwise ranks could fill up with microbatches none of which can go on. Microbatches that
  /// need no more memory on the rank do not count, since they leave again: the last stage can always go on, hence so
  /// can the stage before it, and so on.
  std::vector<double> reserve;
  std::vector<double> whole;  ///< For a rank's last stage: activations of one microbatch in all its stages; else 0.

  std::vector<std::vector<int>> stages_of;  ///< Per rank, ascending.
  std::vector<double> work;                 ///< Per rank: compute time of all microbatches.
  double mean_work = 0;                     ///< Mean over all ranks.
  double unit = 0;                          ///< Compute time of one microbatch on the rank with the most work.
};

struct Step {
  std::int32_t stage;
  std::int32_t microbatch;
  Part part;
};

using StepRow = std::vector<Step>;

}  // namespace stagecraft::detail
