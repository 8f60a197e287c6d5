#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model_instruction.h"

namespace stagecraft {

constexpr std::ptrdiff_t kNeverUsed = -2;

/// Makes the last instruction that uses a slot move its value out, or free it, and drops results that nothing uses.
/// `kept` are used after the last instruction; only slots with a true in `own` are touched, of which those without an
/// entry are not. Returns by slot the index of the last instruction that uses or makes it, kNeverUsed if none does.
std::vector<std::ptrdiff_t> free_after_last_use(std::vector<ModelInstruction>& instructions,
                                                const std::vector<std::int32_t>& kept, const std::vector<bool>& own);

}  // namespace stagecraft
