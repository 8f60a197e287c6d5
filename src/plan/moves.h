#pragma once

#include "policy.h"
#include "stagecraft/core/random.h"

/// Random moves of the local search.
namespace stagecraft::detail {

Block random_block(const Problem& problem, Random& random);

/// Changes one to three parameters of the block.
void mutate(Block& block, const Problem& problem, Random& random);

/// Makes the second of a pair due before the first, by moving one of the two; perhaps for following microbatches too.
void swap_pair(Policy& policy, const Problem& problem, const std::pair<Step, Step>& pair, Random& random);

/// Shifts the due times of a group of parts, or changes how strictly due times are followed.
void mutate(Policy& policy, const Problem& problem, Random& random);

}  // namespace stagecraft::detail
