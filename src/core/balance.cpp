#include "stagecraft/core/balance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

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

/// Where a part begins, by part and end.
using Begins = std::vector<std::vector<std::size_t>>;

/// The smallest possible cost of the largest part, by dynamic programming. Fills in the earliest begins that reach it.
double least_largest(const std::vector<double>& sums, const std::vector<double>& factors, Begins& begins) {
  const std::size_t things = sums.size() - 1;
  begins.assign(factors.size() + 1, std::vector<std::size_t>(things + 1, 0));
  std::vector<double> before(things + 1, kNever);  // optimum of the parts so far, by the number of items covered
  before[0] = 0;
  for (std::size_t part = 1; part <= factors.size(); ++part) {
    std::vector<double> least(things + 1, kNever);
    for (std::size_t end = part; end <= things; ++end) {
      for (std::size_t begin = end; begin-- > part - 1;) {
        const double cost = factors[part - 1] * (sums[end] - sums[begin]);
        if (cost > least[end]) break;  // parts that begin earlier cost at least as much
        const double largest = std::max(before[begin], cost);
        if (largest > least[end]) continue;
        least[end] = largest;
        begins[part][end] = begin;
      }
    }
    before = std::move(least);
  }
  return before[things];
}

/// Where the parts begin, and the number of items.
std::vector<std::size_t> cuts_in(const Begins& begins) {
  std::vector<std::size_t> cuts(begins.size());
  cuts.back() = begins.back().size() - 1;
  for (std::size_t part = cuts.size() - 1; part > 0; --part) cuts[part - 1] = begins[part][cuts[part]];
  return cuts;
}

}  // namespace

std::vector<std::int64_t> balanced_sizes(const std::vector<double>& costs, int parts) {
  const std::vector<double> sums = prefix_sums(costs, parts);
  const auto count = static_cast<std::size_t>(parts);
  const std::size_t things = costs.size();
  Begins begins;
  const double limit = least_largest(sums, std::vector<double>(count, 1.0), begins);

  // Among partitions within the limit, minimise the sum of squares: replaces the begins.
  std::vector<std::vector<double>> least(count + 1, std::vector<double>(things + 1, kNever));
  least[0][0] = 0;
  for (std::size_t part = 1; part <= count; ++part) {
    for (std::size_t end = part; end <= things; ++end) {
      for (std::size_t begin = end; begin-- > part - 1;) {
        const double cost = sums[end] - sums[begin];
        if (cost > limit) break;
        const double squares = least[part - 1][begin] + cost * cost;
        if (squares >= least[part][end]) continue;
        least[part][end] = squares;
        begins[part][end] = begin;
      }
    }
  }
  const std::vector<std::size_t> cuts = cuts_in(begins);
  std::vector<std::int64_t> sizes;
  for (std::size_t part = 0; part < count; ++part) {
    sizes.push_back(static_cast<std::int64_t>(cuts[part + 1] - cuts[part]));
  }
  return sizes;
}

std::vector<std::size_t> min_max_cuts(const std::vector<double>& costs, const std::vector<double>& factors) {
  Begins begins;
  least_largest(prefix_sums(costs, static_cast<int>(factors.size())), factors, begins);
  return cuts_in(begins);
}

}  // namespace stagecraft
