#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

/// Splits a sequence of costs into contiguous, non-empty parts, such that the most expensive part is as cheap as
/// possible. All functions are exact, and throw InvalidArgument when there are fewer items than parts, or for a cost
/// that is negative or not finite. They take O(items x parts x items in the longest part) time.
namespace stagecraft {

/// Number of items in each of `parts` parts. Among the partitions whose largest part is smallest, it returns the one
/// with the smallest sum of squared part costs, and among equals the one that cuts later.
std::vector<std::int64_t> balanced_sizes(const std::vector<double>& costs, int parts);

/// The same for parts of different speed: part i, which is the items [cuts[i], cuts[i + 1]), costs `factors[i]` times
/// the sum of its items. Returns one cut more than there are factors, from 0 to the number of items. Among equals, each
/// cut is as early as the cuts after it allow.
std::vector<std::size_t> min_max_cuts(const std::vector<double>& costs, const std::vector<double>& factors);

}  // namespace stagecraft
