#pragma once

#include <optional>
#include <vector>

#include "stagecraft/autograd/backward.h"
#include "stagecraft/stage/random.h"
#include "stagecraft/stage/stage.h"

namespace stagecraft {

/// A part of a stage's forward with a graph of its own. A stage has one, or with Recompute a chain of them.
struct Segment {
  StageForward forward;  ///< Empty: the stage's own.
  bool again = false;    ///< Its activations are dropped after the forward, and computed again before the backward.
  BackwardPlanner planner;

  /// Whether it begins with the stage's input and nothing is computed again: an ordinary stage.
  [[nodiscard]] bool is_whole_stage() const { return !forward && !again; }

  /// Learnt from its first forward in a mode of the stage's modules, unless it is a whole stage: statistics stand still
  /// in evaluation mode.
  struct Learnt {
    std::uint64_t mode = 0;
    bool changes_input = false;         ///< In place: it gets a copy.
    std::vector<std::size_t> changing;  ///< The stage's buffers that it changes, such as running statistics.
  };
  std::vector<Learnt> learnt;  ///< In the order in which it was learnt; a few.
  std::uint64_t mode = 0;      ///< In this step.

  /// For this step's mode; null if nothing is.
  [[nodiscard]] const Learnt* known() const;
};

/// Before a step: finds out its mode, unless nothing is learnt.
void begin_step(std::vector<Segment>& segments, const Stage& stage);

/// Throws InvalidArgument when layers are to be computed again and the stage has none.
std::vector<Segment> segments_of(const Stage& stage, const Recompute& recompute);

/// One microbatch's pass through a segment.
struct SegmentFlight {
  Backward backward;
  // What a dropped segment is computed again from.
  bool is_dropped = false;
  ValueList input;  ///< Of segments after the first.
  std::vector<RandomScope::Continued> random;
  std::vector<at::Tensor> buffers;  ///< Segment::Learnt::changing, as they were before.
};

/// Runs a segment. With `drop`, `in` gets what is needed to compute it again, except the input.
Value run_first(Segment& segment, const Stage& stage, const StageCall& call, bool drop, RandomScope& random,
                SegmentFlight& in);

/// Runs it again, with the random numbers and the buffers it had.
Value run_again(const Segment& segment, const Stage& stage, const StageCall& call, RandomScope& random,
                SegmentFlight& in);

}  // namespace stagecraft
