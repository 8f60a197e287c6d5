#pragma once

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::detail {

/// A building block (Qi et al., Pipeline Parallelism with Controllable Memory): the ticks at which one microbatch
/// travels the V, down as F, up as F, down as B, up as B. Microbatch j follows the same path 6 j ticks later; 6 is the
/// work of one microbatch on a rank with F = I = W = 1.
///
///        rank 0  F . . . . . . F B . . . . . . B        hop[0..3]: ticks from rank to rank on each leg
///        rank 1  . F . . . . F . . B . . . . B .        turn[0..2]: extra ticks at each turn, which keep
///        rank 2  . . F . . F . . . . B . . B . .        two legs of neighbouring microbatches from
///        rank 3  . . . F F . . . . . . B B . . .        claiming the same tick
///
/// An activation lives from the F to the B of its stage, so the sum of the hops sets the memory: p * sum / 6 half-rank
/// activations per rank.
struct VBlock {
  int hop[4];
  int turn[3];
  ActionKind backward;  // kBackwardInput (1 tick) or kBackward (2 ticks)
};

/// Rows in the order of the block's ticks: F and the block's kind of backward, without idle slots and W. On the common
/// clock every action comes after its inputs, so the order can execute for any number of microbatches.
Schedule unroll(const VBlock& block, int ranks, int microbatches);

}  // namespace stagecraft::detail
