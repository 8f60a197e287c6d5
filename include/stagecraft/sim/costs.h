#pragma once

#include <array>
#include <string>
#include <vector>

#include "stagecraft/schedule/schedule.h"

/// What actions, messages and activations cost. Times and memory are in any unit, the same throughout.
namespace stagecraft {

/// Costs of one microbatch in one stage, unless a field says otherwise.
struct StageCosts {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double backward = 2;     ///< Full backward; where not given, the sum of its parts.
  double optimizer = 0;    ///< Once, after all of the rank's actions.
  double unshard = 0;      ///< Once per UNSHARD.
  double reduce_grad = 0;  ///< Once per REDUCE_GRAD.

  double activation_memory = 1;       ///< From the start of F to the end of B or I.
  double weight_gradient_memory = 1;  ///< What of it an I leaves behind for its W.
  double buffer_memory = 0;           ///< A message that has arrived and is not consumed yet.

  double forward_bytes = 0;   ///< Of the message to the stage after this one.
  double backward_bytes = 0;  ///< Of the message to the stage before this one.
};

/// A message takes latency + bytes / bandwidth. Messages of one directed link share its bandwidth, one after the other.
struct LinkCosts {
  double latency = 0;
  double bandwidth = 0;  ///< Bytes per unit of time; 0 means without limit.
};

struct NamedLink {
  RankId from;
  RankId to;
  LinkCosts costs;
};

struct Costs {
  /// One for all stages, or one per stage.
  std::vector<StageCosts> stages = std::vector<StageCosts>(1);
  /// Used for every pair of ranks that `links` does not name.
  LinkCosts link;
  std::vector<NamedLink> links;
  /// A rank's compute takes this many times what `stages` says; empty means 1 for all, one entry is for all.
  std::vector<double> rank_slowdown;
  /// An OVERLAP_F_B takes this many times the sum of its halves.
  double overlap_factor = 1;
  /// Whether a rank computes while its message travels. If not, it waits until the message has arrived.
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

/// Throws InvalidArgument that names every key which does not fit that many stages and ranks.
void require_fit(const Costs& costs, int stages, int ranks);

/// Costs laid out for one placement: looked up by kind and stage, the rank's slowdown applied.
class ActionCosts {
 public:
  /// Throws InvalidArgument unless the costs fit the placement.
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
