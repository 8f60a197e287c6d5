#include "stagecraft/core/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "support/message_of.h"

namespace stagecraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(BalancedSizes, SmallCases) {
  EXPECT_THAT(balanced_sizes({1, 1, 1, 1}, 2), ElementsAre(2, 2));
  EXPECT_THAT(balanced_sizes({1, 1, 10, 1, 1}, 3), ElementsAre(2, 1, 2));
  EXPECT_THAT(balanced_sizes({9, 1, 1, 1}, 2), ElementsAre(1, 3));
  EXPECT_THAT(balanced_sizes({5}, 1), ElementsAre(1));
  EXPECT_THAT(balanced_sizes({0, 0, 0}, 3), ElementsAre(1, 1, 1));
  EXPECT_THAT(balanced_sizes({9, 4, 4, 1, 1}, 3), ElementsAre(1, 1, 3)) << "not 9 | 4 4 | 1 1: the largest is the same";
  EXPECT_THAT(balanced_sizes({4, 0, 4, 0}, 2), ElementsAre(2, 2)) << "what costs nothing stays with what is before it";
}

TEST(BalancedSizes, WhatCannotBe) {
  EXPECT_THAT(message_of([] { balanced_sizes({1, 2}, 3); }), HasSubstr("2 things cannot be cut into 3 parts"));
  EXPECT_THAT(message_of([] { balanced_sizes({1, 2}, 0); }), HasSubstr("into 0 parts"));
  EXPECT_THAT(message_of([] { balanced_sizes({1, -2}, 1); }), HasSubstr("must be finite and not negative"));
  EXPECT_THAT(message_of([] { balanced_sizes({std::numeric_limits<double>::quiet_NaN()}, 1); }), HasSubstr("finite"));
}

/// The largest part and the sum of squares.
std::pair<double, double> value_of(const std::vector<double>& costs, const std::vector<std::int64_t>& sizes) {
  double largest = 0;
  double squares = 0;
  std::size_t at = 0;
  for (const std::int64_t size : sizes) {
    double cost = 0;
    for (std::int64_t i = 0; i < size; ++i) cost += costs[at++];
    largest = std::max(largest, cost);
    squares += cost * cost;
  }
  return {largest, squares};
}

TEST(BalancedSizes, AreThoseOfTryingEveryCut) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<double> costs(1 + random() % 9);
    for (double& cost : costs) cost = random() % 4 == 0 ? 0 : random() % 12;  // whole numbers: sums are exact
    const int parts = 1 + static_cast<int>(random() % costs.size());
    std::pair<double, double> best = {1e9, 0};
    std::vector<std::int64_t> sizes;
    const std::function<void(std::int64_t)> try_all = [&](std::int64_t left) {
      if (static_cast<int>(sizes.size()) + 1 == parts) {
        sizes.push_back(left);
        best = std::min(best, value_of(costs, sizes));
        sizes.pop_back();
        return;
      }
      const auto later = parts - static_cast<std::int64_t>(sizes.size()) - 1;
      for (std::int64_t size = 1; size <= left - later; ++size) {
        sizes.push_back(size);
        try_all(left - size);
        sizes.pop_back();
      }
    };
    try_all(static_cast<std::int64_t>(costs.size()));
    const std::vector<std::int64_t> got = balanced_sizes(costs, parts);
    ASSERT_EQ(static_cast<int>(got.size()), parts);
    ASSERT_EQ(std::accumulate(got.begin(), got.end(), std::int64_t{0}), static_cast<std::int64_t>(costs.size()));
    ASSERT_EQ(value_of(costs, got), best) << testing::PrintToString(costs) << " into " << parts;
  }
}

TEST(MinMaxCuts, SlowPartsGetLess) {
  EXPECT_THAT(min_max_cuts({1, 1, 1, 1}, {1, 1}), ElementsAre(0, 2, 4));
  EXPECT_THAT(min_max_cuts({1, 1, 1, 1}, {3, 1}), ElementsAre(0, 1, 4));
  EXPECT_THAT(min_max_cuts({1, 1, 1, 1}, {1, 3}), ElementsAre(0, 3, 4));
  EXPECT_THAT(min_max_cuts({9, 1, 1, 1}, {1, 1, 1}), ElementsAre(0, 1, 2, 4)) << "as early as the cuts after it allow";
  EXPECT_THAT(message_of([] { min_max_cuts({1}, {1, 1}); }), HasSubstr("1 things cannot be cut into 2 parts"));
}

TEST(MinMaxCuts, HaveTheSameLargestPartAsBalancedSizes) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<double> costs(1 + random() % 20);
    for (double& cost : costs) cost = random() % 12;
    const int parts = 1 + static_cast<int>(random() % costs.size());
    const std::vector<std::size_t> cuts = min_max_cuts(costs, std::vector<double>(static_cast<std::size_t>(parts), 1));
    std::vector<std::int64_t> sizes;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) sizes.push_back(static_cast<std::int64_t>(cuts[i + 1] - cuts[i]));
    ASSERT_EQ(static_cast<int>(sizes.size()), parts);
    ASSERT_EQ(value_of(costs, sizes).first, value_of(costs, balanced_sizes(costs, parts)).first);
  }
}

TEST(BalancedSizes, ManyThings) {
  std::mt19937 random(3);
  std::vector<double> costs(5000);
  for (double& cost : costs) cost = 1.0 + static_cast<double>(random() % 1000) / 999;
  const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
  EXPECT_LT(value_of(costs, balanced_sizes(costs, 16)).first, total / 16 + 2);
}

}  // namespace
}  // namespace stagecraft
