#pragma once

namespace stagecraft::detail {

/// Times and bubbles that differ by less are the same: sums in another order differ in their last bits.
constexpr double kSame = 1e-9;
/// The same of memory.
constexpr double kTinyMemory = 1e-9;
/// How far a plan may be above a limit that a user gave in few digits.
constexpr double kMemoryMargin = 1e-6;

}  // namespace stagecraft::detail
