#pragma once

#include <cstdint>
#include <vector>

/// Splits a sequence of costs into contiguous parts.
namespace stagecraft {

/// Number of items in each of `parts` consecutive, non-empty parts, such that the most expensive part is as cheap as
/// possible. Among those partitions it returns the one with the smallest sum of squared part costs, and among equals
/// the one that cuts later. Exact. Throws InvalidArgument when there are fewer items than parts, or for a cost that is
/// negative or not finite.
///
/// Takes O(items x parts x items in the longest part) time.
std::vector<std::int64_t> balanced_sizes(const std::vector<double>& costs, int parts);

}  // namespace stagecraft
