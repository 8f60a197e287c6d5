#pragma once

#include <array>
#include <string>
#include <vector>

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
  double unshard = 0;      ///< Once per UNSHARD.
  double reduce_grad = 0;  ///< Once per REDUCE_GRAD.

  double activation_memory = 1;       ///< Held from the start of F to the end of B or I.
  double weight_gradient_memory = 1;  ///< Held from an I to the end of its W.
  double buffer_memory = 0;           ///< Held from a message's arrival to the end of its consumer.

  double forward_bytes = 0;   ///< Size of the message to the next stage.
  double backward_bytes = 0;  ///< Size of the message to the previous stage.
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

  [[nodiscard]] const StageCosts& of(StageId stage) const {
    return stages.size() == 1 ? stages.front() : stages[stage.index()];
  }
  [[nodiscard]] double slowdown(RankId rank) const {
    if (rank_slowdown.empty()) return 1;
    return rank_slowdown.size() == 1 ? rank_slowdown.front() : rank_slowdown[rank.index()];
  }
  [[nodiscard]] LinkCosts between(RankId from, RankId to) const;
};

/// Throws InvalidArgument that names every key whose number of entries or ranks does not match `stages` and `ranks`.
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
