#pragma once

#include "stagecraft/sim/simulator.h"

/// The memory that a rank holds besides activations and messages, whatever its schedule. See
/// docs/design/memory_model.md.
namespace stagecraft {

/// What the rank holds of its stages throughout a step: parameters that are always whole, masters, state of the
/// optimizer; of what replicas share, its part.
MemoryParts resident_memory(const Costs& costs, const Placement& placement, RankId rank);

/// The same, with all gradients and all parameters that the schedule makes whole at the same time: no less than the
/// rank holds at any time, buffers of communication apart.
MemoryParts most_other_memory(const Costs& costs, const Placement& placement, RankId rank);

}  // namespace stagecraft
