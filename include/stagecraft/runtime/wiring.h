#pragma once

#include <vector>

#include "stagecraft/core/ids.h"

/// Which values flow between which stages.
namespace stagecraft {

/// One output of a stage as one argument of a later stage.
struct Edge {
  StageId from;
  int output = 0;  ///< Counted from 0; a stage that does not return a list has output 0.
  StageId to;
  int argument = 0;
  /// Whether a gradient comes back along this edge.
  bool gradient = true;
};

/// The edges of a pipeline, cut at the boundaries between stages. A value that skips stages travels with the messages
/// between neighbours through all stages in between, and so does its gradient on the way back: schedules and the proofs
/// about their messages need not know of skip connections. On one device this costs nothing; between machines it costs
/// the value's size once per boundary.
///
/// A stage without edges of its own takes all outputs of the stage before it, in their order.
class Wiring {
 public:
  static constexpr int kAll = -1;

  /// What crosses a boundary: an output of a stage at or before it, or all outputs of the stage just before it.
  struct Item {
    int from;
    int output;  // kAll: the whole result
    bool operator==(const Item&) const = default;
  };
  /// An argument of a stage: which item of the boundary before it.
  struct Argument {
    int item;
    bool gradient;
  };

  /// Throws InvalidArgument for an edge that does not go forward, to stages that do not exist, or that leaves an
  /// argument of its stage without a value or gives it two.
  Wiring(int stages, std::vector<Edge> edges);

  [[nodiscard]] int stages() const { return static_cast<int>(arguments_.size()); }
  /// The items that cross from `stage` to the next, in the order of the message.
  [[nodiscard]] const std::vector<Item>& after(StageId stage) const { return boundaries_[stage.index()]; }
  /// The arguments of a stage; empty when it takes everything that the stage before returns.
  [[nodiscard]] const std::vector<Argument>& arguments(StageId stage) const { return arguments_[stage.index()]; }
  /// For each item after the stage: the index of the same item before the stage, or -1 when the stage makes it.
  [[nodiscard]] const std::vector<int>& relayed(StageId stage) const { return relayed_[stage.index()]; }

 private:
  std::vector<std::vector<Item>> boundaries_;
  std::vector<std::vector<Argument>> arguments_;
  std::vector<std::vector<int>> relayed_;
};

}  // namespace stagecraft
