#include "stagecraft/core/balance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

std::vector<double> prefix_sums(const std::vector<double>& costs, int parts) {
  if (parts < 1 || costs.size() < static_cast<std::size_t>(parts)) {
    throw InvalidArgument(std::to_string(costs.size()) + " things cannot be cut into " + std::to_string(parts) +
                          " parts: every part has at least one");
  }
  std::vector<double> sums = {0};
  for (const double cost : costs) {
    if (!std::isfinite(cost) || cost < 0) {
      throw InvalidArgument("a cost is " + std::to_string(cost) + ": it must be finite and not negative");
    }
    sums.push_back(sums.back() + cost);
  }
  return sums;
}

/// The smallest possible cost of the largest part, by dynamic programming.
double least_largest(const std::vector<double>& sums, std::size_t parts) {
  const std::size_t things = sums.size() - 1;
  std::vector<double> least(things + 1, kNever);  // optimum of the parts so far, by the number of items covered
  least[0] = 0;
  for (std::size_t part = 1; part <= parts; ++part) {
    for (std::size_t end = things; end >= part; --end) {
      double best = kNever;
      for (std::size_t begin = end - 1; begin + 1 >= part; --begin) {
        const double cost = sums[end] - sums[begin];
        if (cost >= best) break;  // parts that begin earlier cost at least as much
        best = std::min(best, std::max(least[begin], cost));
        if (begin == 0) break;
      }
      least[end] = best;
    }
    least[part - 1] = kNever;
  }
  return least[things];
}

}  // namespace

std::vector<std::int64_t> balanced_sizes(const std::vector<double>& costs, int parts) {
  const std::vector<double> sums = prefix_sums(costs, parts);
  const auto count = static_cast<std::size_t>(parts);
  const std::size_t things = costs.size();
  const double limit = least_largest(sums, count);

  // Among partitions within the limit, minimise the sum of squares.
  std::vector<std::vector<double>> least(count + 1, std::vector<double>(things + 1, kNever));
  std::vector<std::vector<std::size_t>> from(count + 1, std::vector<std::size_t>(things + 1, 0));
  least[0][0] = 0;
  for (std::size_t part = 1; part <= count; ++part) {
    for (std::size_t end = part; end <= things; ++end) {
      for (std::size_t begin = end; begin-- > part - 1;) {
        const double cost = sums[end] - sums[begin];
        if (cost > limit) break;
        const double squares = least[part - 1][begin] + cost * cost;
        if (squares >= least[part][end]) continue;
        least[part][end] = squares;
        from[part][end] = begin;
      }
    }
  }
  std::vector<std::int64_t> sizes(count);
  std::size_t end = things;
  for (std::size_t part = count; part > 0; --part) {
    const std::size_t begin = from[part][end];
    sizes[part - 1] = static_cast<std::int64_t>(end - begin);
    end = begin;
  }
  return sizes;
}

}  // namespace stagecraft
