#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "stagecraft/core/ids.h"

/// Which rank each stage lives on.
namespace stagecraft {

///   linear, 4 ranks      loop, 2 stages per rank     V, 2 stages per rank
///   rank 0: 0            rank 0: 0 4                 rank 0: 0 7
///   rank 1: 1            rank 1: 1 5                 rank 1: 1 6
///   rank 2: 2            rank 2: 2 6                 rank 2: 2 5
///   rank 3: 3            rank 3: 3 7                 rank 3: 3 4
class Placement {
 public:
  Placement() = default;
  /// Any map: `rank_of_stage[s]` is stage s's rank. Throws InvalidArgument unless every entry is in [0, ranks).
  Placement(int ranks, std::vector<RankId> rank_of_stage);

  static Placement linear(int ranks) { return loop(ranks, 1); }
  static Placement loop(int ranks, int stages_per_rank);
  /// Stages go down the ranks, up again, down again, ...
  static Placement v(int ranks, int stages_per_rank);

  [[nodiscard]] int ranks() const { return static_cast<int>(first_.size()) - 1; }
  [[nodiscard]] int stages() const { return static_cast<int>(rank_of_.size()); }
  [[nodiscard]] RankId rank_of(StageId stage) const { return rank_of_[stage.index()]; }
  /// The rank of each stage, indexed by stage.
  [[nodiscard]] std::span<const RankId> ranks_of_stages() const { return rank_of_; }
  /// The rank's stages, ascending.
  [[nodiscard]] std::span<const StageId> stages_of(RankId rank) const;
  /// Position of the stage among the stages of its own rank.
  [[nodiscard]] int local_index(StageId stage) const { return local_index_[stage.index()]; }
  /// Whether two stages are on the same rank. Both stages must exist.
  [[nodiscard]] bool share_rank(StageId a, StageId b) const { return rank_of(a) == rank_of(b); }
  [[nodiscard]] bool contains(StageId stage) const { return stage.value >= 0 && stage.value < stages(); }

  /// "linear", "loop", "v", or "custom" for any other map.
  [[nodiscard]] std::string_view style() const;

  bool operator==(const Placement& other) const { return rank_of_ == other.rank_of_ && ranks() == other.ranks(); }

 private:
  std::vector<RankId> rank_of_;
  std::vector<int> local_index_;
  std::vector<StageId> grouped_;  // stages sorted by (rank, stage)
  std::vector<int> first_ = {0};  // rank r owns grouped_[first_[r] .. first_[r + 1])
};

}  // namespace stagecraft
