#pragma once

namespace stagecraft::detail {

/// Times and bubbles that differ by less count as equal: sums in another order differ in their last bits.
constexpr double kSame = 1e-9;
/// The same for memory.
constexpr double kTinyMemory = 1e-9;
/// By how much a plan may exceed a memory limit, which users give with few digits.
constexpr double kMemoryMargin = 1e-6;

}  // namespace stagecraft::detail
