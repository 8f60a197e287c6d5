#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/core/shard.h"
#include "stagecraft/schedule/schedule.h"

/// Costs of actions, messages and activations. Times and memory may be in any unit, used consistently.
namespace stagecraft {

/// Costs of one microbatch in one stage, unless a field says otherwise.
struct StageCosts {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double backward = 2;     ///< Full backward; a cost file without it gets the sum of its parts.
  double optimizer = 0;    ///< Once, after all of the rank's actions.
  double unshard = 0;      ///< Once per UNSHARD. With replicas, 0 means that it follows from `Costs::replica_link`.
  double reduce_grad = 0;  ///< Once per REDUCE_GRAD. With replicas, 0 as above.

  double activation_memory = 1;       ///< Held from the start of F to the end of B or I.
  double weight_gradient_memory = 1;  ///< Held from an I to the end of its W.
  double buffer_memory = 0;           ///< Held from a message's arrival to the end of its consumer.

  double forward_bytes = 0;   ///< Size of the message to the next stage.
  double backward_bytes = 0;  ///< Size of the message to the previous stage.

  // Memory that does not depend on microbatches, of the whole stage: replicas hold parts of it, see `Costs::shard`.
  double parameter_memory = 0;  ///< What the modules compute with.
  /// What the optimizer updates, where that is of another type: float32 for modules in bfloat16. 0 means that the
  /// modules' parameters are updated themselves; replicas that shard then hold their parts of a copy of these.
  double master_memory = 0;
  double gradient_memory = 0;   ///< From the stage's first weight gradient of a step.
  double optimizer_memory = 0;  ///< State of the optimizer.
  double unshard_memory = 0;    ///< Buffers of an UNSHARD, while it communicates.
  double reduce_memory = 0;     ///< Buffers of a REDUCE_GRAD of shards, while it communicates.

  /// Whether the stage drops its activations after F and computes them again in B or I, which then takes the time of
  /// the F in addition. An F whose B or I is the rank's next compute keeps them.
  bool recompute = false;
  double input_memory = 0;  ///< What a dropped microbatch holds between F and B or I: the stage's input.

  /// Whether gradients of a microbatch are of another type than those they are added to: modules have other types than
  /// the optimizer.
  [[nodiscard]] bool is_mixed() const { return master_memory > 0 && master_memory != parameter_memory; }
};

/// A message takes latency + bytes / bandwidth. A directed link transfers one message at a time.
struct LinkCosts {
  double latency = 0;
  double bandwidth = 0;  ///< Bytes per unit of time; 0 means unlimited.
};

struct NamedLink {
  RankId from;
  RankId to;
  LinkCosts costs;
};

struct Costs {
  /// One entry for all stages, or one entry per stage.
  std::vector<StageCosts> stages = std::vector<StageCosts>(1);
  /// Used for every pair of ranks that `links` does not name.
  LinkCosts link;
  std::vector<NamedLink> links;
  /// Factor on the compute times of each rank. Empty means 1 for all ranks; a single entry applies to all.
  std::vector<double> rank_slowdown;
  /// Duration of an OVERLAP_F_B, relative to the sum of its halves.
  double overlap_factor = 1;
  /// Whether a rank can compute while a message it sent is in transit. If not, the sender waits for its arrival.
  bool overlap_communication = true;

  /// Pipelines side by side, each on its part of the batch. From 2 on, UNSHARD and REDUCE_GRAD communicate beside
  /// compute; with 1, they take their time of the compute stream.
  int replicas = 1;
  Shard shard = Shard::kNone;
  /// Between the replicas of a rank, for n units of memory: a gather or a reduce-scatter takes
  /// latency + n (R - 1) / R / bandwidth, an average of whole gradients twice as long.
  LinkCosts replica_link;
  /// Whether memory is in bytes: reports then print units, and a memory limit may have one.
  bool memory_in_bytes = false;

  /// Whether anything but activations and messages between ranks takes memory or time: memory of parameters, replicas,
  /// recompute; and with bytes, gradients between stages of a rank.
  [[nodiscard]] bool has_more_than_activations() const;

  [[nodiscard]] const StageCosts& of(StageId stage) const {
    return stages.size() == 1 ? stages.front() : stages[stage.index()];
  }
  [[nodiscard]] double slowdown(RankId rank) const {
    if (rank_slowdown.empty()) return 1;
    return rank_slowdown.size() == 1 ? rank_slowdown.front() : rank_slowdown[rank.index()];
  }
  [[nodiscard]] LinkCosts between(RankId from, RankId to) const;
};

/// "none", "optimizer", "gradients" or "parameters".
std::string_view shard_name(Shard shard);

/// Memory for people: "1.5 GiB" if the costs are in bytes, else a plain number.
std::string memory_text(const Costs& costs, double memory);

/// Throws InvalidArgument that names every key whose number of entries or ranks does not match `stages` and `ranks`,
/// and for `shard` without replicas.
void require_fit(const Costs& costs, int stages, int ranks);

/// Durations of actions for one placement, by kind and stage, with the ranks' slowdowns applied.
class ActionCosts {
 public:
  /// Throws InvalidArgument unless the costs fit the placement, see `require_fit`.
  ActionCosts(const Costs& costs, const Placement& placement);

  /// Duration of a plain action; 0 for messages.
  [[nodiscard]] double of(ActionKind kind, StageId stage) const {
    return by_stage_[stage.index()][static_cast<std::size_t>(kind)];
  }
  /// Duration of any action, overlaps included.
  [[nodiscard]] double of(const Action& action) const {
    if (!action.is_overlap()) return action.is_idle() ? 0 : of(action.kind(), action.stage());
    return overlap_factor_ *
           (of(action.first().kind(), action.stage()) + of(action.second().kind(), action.second().stage()));
  }

 private:
  std::vector<std::array<double, kActionKinds>> by_stage_;
  double overlap_factor_;
};

}  // namespace stagecraft
