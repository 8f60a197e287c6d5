#include "stagecraft/core/permutation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace stagecraft {
namespace {

std::vector<std::uint64_t> all_of(const Permutation& permutation) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t i = 0; i < permutation.size(); ++i) all.push_back(permutation(i));
  return all;
}

TEST(Permutation, EveryNumberOnceForAnySize) {
  for (std::uint64_t size = 1; size < 300; ++size) {
    std::vector<std::uint64_t> all = all_of(Permutation(size, size * 7));
    std::sort(all.begin(), all.end());
    for (std::uint64_t i = 0; i < size; ++i) ASSERT_EQ(all[i], i) << "size " << size;
  }
}

/// The numbers are part of what a checkpoint means: a run that is resumed by a newer version must go on in this order.
TEST(Permutation, StaysAsItIs) {
  EXPECT_THAT(all_of(Permutation(10, 3)), testing::ElementsAre(0, 2, 9, 7, 1, 8, 3, 6, 4, 5));
  EXPECT_EQ(Permutation(1'000'000'007, 5)(123'456'789), 85482938U);
}

TEST(Permutation, TakesNoMemoryOfItsSize) {
  const Permutation large(std::uint64_t{1} << 62, 1);
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 1000; ++i) seen.insert(large(i));
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_LT(sizeof large, 200U);
}

/// Each of 24 numbers comes first for about a 24th of the keys, and neighbours are not kept together.
TEST(Permutation, IsNotLopsided) {
  constexpr int kKeys = 24'000;
  std::vector<int> first(24);
  int neighbours = 0;
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    const Permutation permutation(24, key);
    ++first[permutation(0)];
    neighbours += permutation(5) == permutation(4) + 1 ? 1 : 0;
  }
  // Each count is binomial with a mean of 1000 and a deviation of 31.
  for (const int count : first) EXPECT_NEAR(count, 1000, 160);
  EXPECT_NEAR(neighbours, 1000, 160);
}

}  // namespace
}  // namespace stagecraft
