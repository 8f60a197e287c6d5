#pragma once

#include <array>

#include "problem.h"

namespace stagecraft::detail {

/// What the dispatcher goes by: a due time for every F, I and W, and how strictly to keep to their order.
struct Policy {
  /// Per Part, by stage and microbatch; ascending along the microbatches of a stage.
  std::array<std::vector<double>, 3> due;
  /// How much later than the most urgent action of the rank one may be due and still be taken instead when it is ready.
  double slack = 0;
  /// A weight part that is not due yet is done in a gap of at least this part of its time; below 1 it may hold up what
  /// comes next.
  double gap = 1;
  /// The same once the rank has no forward left, where nothing else moves a weight part forward: others wait for every
  /// I then, and no more room is needed.
  double last_gap_first = 0;  ///< On rank 0; linear between.
  double last_gap_last = 1;   ///< On the last rank.
  /// ... and if it is due no longer than this after the most urgent action.
  double reach = 1e18;
  /// Whether a forward without room asks for a weight part before an input part that is due later.
  bool make_room_first = false;

  [[nodiscard]] std::vector<double>& of(Part part) { return due[static_cast<std::size_t>(part)]; }
  [[nodiscard]] const std::vector<double>& of(Part part) const { return due[static_cast<std::size_t>(part)]; }
};

/// A building block: the times at which microbatch 0 visits the stages; microbatch j comes j intervals later. Times in
/// units of one microbatch's work on a rank.
struct Block {
  double interval = 1;
  std::vector<double> stretch;  ///< Per leg (each lap forwards, then each lap backwards): extra time per hop.
  std::vector<double> turn;     ///< Per leg: extra time before it begins.
  double slack = 1e9;
  double gap = 1;
  double last_gap_first = 0;
  double last_gap_last = 1;
  double reach = 1e9;
  double weight_delay_first = 1e9;  ///< From I to W, on rank 0 and on the last rank, linear between.
  double weight_delay_last = 1e9;
  bool make_room_first = false;
};

Policy policy_of(const Problem& problem, const Block& block);

}  // namespace stagecraft::detail
