#pragma once

#include "policy.h"
#include "stagecraft/core/random.h"

/// Random steps of the search.
namespace stagecraft::detail {

Block random_block(const Problem& problem, Random& random);

/// Changes a few knobs.
void mutate(Block& block, const Problem& problem, Random& random);

/// Makes the second of a pair due before the first, or the first after the second; perhaps for the microbatches that
/// follow too.
void swap_pair(Policy& policy, const Problem& problem, const std::pair<Step, Step>& pair, Random& random);

/// Shifts the due times of a group of parts, or changes how strictly they are kept.
void mutate(Policy& policy, const Problem& problem, Random& random);

}  // namespace stagecraft::detail
