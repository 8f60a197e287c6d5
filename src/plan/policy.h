#pragma once

#include <array>

#include "problem.h"
#include "stagecraft/core/random.h"

/// What the search varies: policies and building blocks, and the random moves between them.
namespace stagecraft::detail {

/// Priorities for the dispatcher: a due time for every F, I and W, and how strictly to follow their order.
struct Policy {
  /// Per Part, by stage and microbatch; ascending along the microbatches of a stage.
  std::array<std::vector<double>, 3> due;
  /// A ready F or I may start if it is due at most this much later than the rank's most urgent F or I.
  double slack = 0;
  /// A W that is not due yet fills a gap of at least this fraction of its duration; below 1 it may delay the next part.
  double gap = 1;
  /// The same once the rank has no forwards left. Then only gaps are filled with Ws: other ranks wait for every I, and
  /// no forward needs memory.
  double last_gap_first = 0;  ///< On rank 0; interpolated between.
  double last_gap_last = 1;   ///< On the last rank.
  /// A W fills a gap only if it is due at most this long after the most urgent F or I.
  double reach = 1e18;
  /// Whether a W goes before a ready part, to free memory for a forward that is due earlier than that part.
  bool make_room_first = false;

  [[nodiscard]] std::vector<double>& of(Part part) { return due[static_cast<std::size_t>(part)]; }
  [[nodiscard]] const std::vector<double>& of(Part part) const { return due[static_cast<std::size_t>(part)]; }
};

/// A building block: the times at which microbatch 0 visits the stages; microbatch j follows j intervals later. Times
/// are in units of one microbatch's work on a rank.
struct Block {
  double interval = 1;
  std::vector<double> stretch;  ///< Per leg (each lap forwards, then each lap backwards): extra time per hop.
  std::vector<double> turn;     ///< Per leg: extra time before it begins.
  double slack = 1e9;
  double gap = 1;
  double last_gap_first = 0;
  double last_gap_last = 1;
  double reach = 1e9;
  double weight_delay_first = 1e9;  ///< From I to W on rank 0; interpolated up to the last rank.
  double weight_delay_last = 1e9;
  bool make_room_first = false;
};

Policy policy_of(const Problem& problem, const Block& block);

Block random_block(const Problem& problem, Random& random);

/// Changes one to three parameters of the block.
void mutate(Block& block, const Problem& problem, Random& random);

/// Makes the second of a pair due before the first, by moving one of the two; perhaps for following microbatches too.
void swap_pair(Policy& policy, const Problem& problem, const std::pair<Step, Step>& pair, Random& random);

/// Shifts the due times of a group of parts, or changes how strictly due times are followed.
void mutate(Policy& policy, const Problem& problem, Random& random);

}  // namespace stagecraft::detail
