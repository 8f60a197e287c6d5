#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "stagecraft/sim/costs.h"

/// What the planner solves: costs of one placement in flat arrays, arrival times of messages, rows of parts, and a
/// bound that no schedule beats.
namespace stagecraft::detail {

/// Times and bubbles that differ by less count as equal: sums in another order differ in their last bits.
constexpr double kSame = 1e-9;
/// The same for memory.
constexpr double kTinyMemory = 1e-9;
/// By how much a plan may exceed a memory limit, which users give with few digits.
constexpr double kMemoryMargin = 1e-6;

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

  /// Activations of one microbatch in all stages of a rank.
  [[nodiscard]] double whole_of(std::size_t rank) const {
    return stages_of[rank].empty() ? 0 : whole[static_cast<std::size_t>(stages_of[rank].back())];
  }

  Placement placement;
  int ranks;
  int stages;
  int microbatches;
  bool hold_up_sender;  ///< Whether a rank waits until its message has arrived.
  std::size_t links = 0;

  // Per stage.
  std::vector<int> rank_of;
  std::vector<int> lap;  ///< Index of the stage among the stages of its rank.
  std::vector<double> forward;
  std::vector<double> input;        ///< With the forward that a stage computes again.
  std::vector<double> least_input;  ///< Without it: an I right after its F needs none.
  std::vector<double> weight;
  std::vector<double> activation;        ///< Memory held after F; at least what I leaves.
  std::vector<double> least_activation;  ///< Memory held after F, as the costs say.
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
  /// Per rank: memory for activations, infinite without a limit. What the rank holds besides is subtracted as if it
  /// held all of it all the time, so that no schedule within `limit` exceeds the real one, buffers and messages apart.
  /// None beyond `most_limit` keeps the real one: only what the rank always holds is subtracted there.
  std::vector<double> limit;
  std::vector<double> most_limit;
  std::vector<double> work;        ///< Per rank: compute time of all microbatches.
  std::vector<double> least_work;  ///< The same with `least_input`.
  double mean_work = 0;            ///< Mean over all ranks.
  double mean_least_work = 0;
  double unit = 0;  ///< Compute time of one microbatch on the rank with the most work.

 private:
  void set_limits(const Costs& costs, double memory_limit);
  [[nodiscard]] double briefly(const Costs& costs, const std::vector<int>& own) const;
};

/// Computes arrival times of messages. A directed link transfers one message at a time, in the order of sending.
class Links {
 public:
  explicit Links(const Problem& problem) : problem_(problem), free_(problem.links) {}

  void reset() { std::fill(free_.begin(), free_.end(), 0.0); }

  /// Arrival time of a message that stage `s` sends to the next stage at `time`.
  double up(std::size_t s, double time) {
    return travel(problem_.link_up[s], problem_.transfer_up[s], time) + problem_.hop_up[s];
  }
  /// Arrival time of a message that stage `s` sends to the previous stage at `time`.
  double down(std::size_t s, double time) {
    return travel(problem_.link_down[s], problem_.transfer_down[s], time) + problem_.hop_down[s];
  }

 private:
  /// When the link begins to transfer the message; occupies the link until the transfer ends.
  double travel(int link, double transfer, double time) {
    if (transfer == 0) return time;
    double& free = free_[static_cast<std::size_t>(link)];
    const double sent = std::max(free, time);
    free = sent + transfer;
    return sent;
  }

  const Problem& problem_;
  std::vector<double> free_;
};

struct Step {
  std::int32_t stage;
  std::int32_t microbatch;
  Part part;
};

using StepRow = std::vector<Step>;
/// The rows as a schedule named "planned".
Schedule to_schedule(const Placement& placement, int microbatches, const std::vector<StepRow>& rows);

/// A lower bound on the span (the largest of any rank) of all schedules with these costs, placement and memory limit.
double lower_bound(const Problem& problem);

}  // namespace stagecraft::detail
