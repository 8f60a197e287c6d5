#pragma once

#include <cstdint>
#include <vector>

/// Cutting a row of things with costs into parts.
namespace stagecraft {

/// Sizes of `parts` parts, one after the other, that cover all things, each with at least one. The largest part costs
/// as little as it can, and of all ways that do that, this one is the most even (the least sum of squares; of equals,
/// later cuts come later). Exact. Costs are finite and not negative. Throws InvalidArgument when there are fewer things
/// than parts, or for a cost that cannot be.
///
/// Takes time for things x parts x the most things in a part.
std::vector<std::int64_t> balanced_sizes(const std::vector<double>& costs, int parts);

}  // namespace stagecraft
