#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/sim/costs.h"

namespace stagecraft::detail {

/// A compute as one number: what rows are made of while they are planned.
enum class Part : std::uint8_t { kForward, kInput, kWeight };

/// Costs flattened for one placement, number of microbatches and memory limit: what the planner's inner loops look at.
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
  double limit;         ///< Of every rank; infinite where there is none.
  bool hold_up_sender;  ///< Whether a rank waits until its message has arrived.
  std::size_t links = 0;

  // Per stage.
  std::vector<int> rank_of;
  std::vector<int> lap;  ///< How many of the rank's own stages come before this one.
  std::vector<double> forward;
  std::vector<double> input;
  std::vector<double> weight;
  std::vector<double> activation;        ///< Taken by F; at least what I leaves, which must find room too.
  std::vector<double> least_activation;  ///< What F takes by the costs alone.
  std::vector<double> weight_gradient;   ///< Left by I.
  std::vector<double> hop_up;            ///< Message from this stage to the next, 0 within a rank.
  std::vector<double> hop_down;          ///< Message from this stage to the one before.
  std::vector<double> transfer_up;       ///< The part of it during which no other message passes the link.
  std::vector<double> transfer_down;
  std::vector<int> link_up;  ///< Which directed link the message takes; any where nothing is transferred.
  std::vector<int> link_down;
  /// Room for one microbatch in each later stage of the rank. Microbatches that have yet to come back for those stages
  /// must leave it free: without it, ranks could fill up with microbatches of which none can go on. Microbatches that
  /// ask this rank for no more room do not count, since they leave again: the last stage always can go on, so those in
  /// the stage before can, and so on.
  std::vector<double> reserve;
  std::vector<double> whole;  ///< Activations of one microbatch in all stages of the rank, at its last stage; else 0.

  std::vector<std::vector<int>> stages_of;  ///< Per rank, ascending.
  std::vector<double> work;                 ///< Per rank, of all microbatches.
  double mean_work = 0;                     ///< Of all ranks.
  double unit = 0;                          ///< The most work that one microbatch means to any rank.
};

struct Step {
  std::int32_t stage;
  std::int32_t microbatch;
  Part part;
};

using StepRow = std::vector<Step>;

}  // namespace stagecraft::detail
