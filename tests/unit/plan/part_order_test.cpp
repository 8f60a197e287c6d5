#include "part_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "stagecraft/core/random.h"
#include "support/message_of.h"

namespace stagecraft::detail {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// The former order: by start, but by dependency if two starts are equal within the tolerance.
bool comes_first_within_tolerance(const PartOrder& order, const std::vector<double>& starts, std::size_t a,
                                  std::size_t b) {
  if (std::abs(starts[a] - starts[b]) > 1e-7) return starts[a] < starts[b];
  return order.implied(a, b);
}

TEST(PartOrder, ComparingWithinAToleranceIsNoOrder) {
  const PartOrder order(Placement::linear(1), 3);
  // One stage runs F2, and I0 and W0 of an earlier microbatch, which do not depend on F2.
  const std::size_t f2 = order.id(Part::kForward, 0, 2), i0 = order.id(Part::kInput, 0, 0),
                    w0 = order.id(Part::kWeight, 0, 0);
  std::vector<double> starts(order.parts(), 5);
  starts[w0] = 1;
  starts[f2] = 1 + 0.8e-7;
  starts[i0] = 1 + 1.6e-7;
  const auto first = [&](std::size_t a, std::size_t b) { return comes_first_within_tolerance(order, starts, a, b); };
  // W0 and F2 compare equal, F2 and I0 too, and yet W0 comes before I0: sorting by this is undefined behaviour.
  EXPECT_TRUE(!first(w0, f2) && !first(f2, w0) && !first(f2, i0) && !first(i0, f2));
  EXPECT_TRUE(first(w0, i0));
  const std::vector<std::size_t> row = order.in_time(0, starts);
  EXPECT_LT(std::find(row.begin(), row.end(), i0), std::find(row.begin(), row.end(), w0)) << "a W needs its I";
}

TEST(PartOrder, ARowKeepsWhatIsImpliedWhateverTheTimes) {
  Random random;
  random.seed(11);
  for (const Placement& placement : {Placement::linear(2), Placement::v(2, 2), Placement::loop(1, 3)}) {
    const PartOrder order(placement, 4);
    for (int trial = 0; trial < 50; ++trial) {
      std::vector<double> middles(order.parts());
      // Most of them as close to each other as a solver's tolerance.
      for (double& middle : middles) middle = std::floor(4 * random.uniform()) + 1e-7 * random.uniform();
      for (int r = 0; r < placement.ranks(); ++r) {
        const std::vector<std::size_t> row = order.in_time(r, middles);
        ASSERT_EQ(row.size(), order.parts() / static_cast<std::size_t>(placement.ranks()));
        for (std::size_t i = 0; i < row.size(); ++i) {
          for (std::size_t j = i + 1; j < row.size(); ++j) ASSERT_FALSE(order.implied(row[j], row[i]));
        }
      }
    }
  }
}

TEST(PartOrder, TimesThatAreConsistentDecide) {
  const PartOrder order(Placement::linear(1), 3);
  // F0 I0 F1 W0 I1 F2 ...; some take no time, so they are ordered by their middles.
  std::vector<std::size_t> wanted;
  for (const auto& [part, microbatch] : std::vector<std::pair<Part, std::size_t>>{{Part::kForward, 0},
                                                                                  {Part::kInput, 0},
                                                                                  {Part::kForward, 1},
                                                                                  {Part::kWeight, 0},
                                                                                  {Part::kInput, 1},
                                                                                  {Part::kForward, 2},
                                                                                  {Part::kInput, 2},
                                                                                  {Part::kWeight, 1},
                                                                                  {Part::kWeight, 2}}) {
    wanted.push_back(order.id(part, 0, microbatch));
  }
  std::vector<double> middles(order.parts());
  for (std::size_t i = 0; i < wanted.size(); ++i) middles[wanted[i]] = 0.5 * static_cast<double>(i);
  EXPECT_EQ(order.in_time(0, middles), wanted);
}

TEST(PartOrder, SizesAreRefusedBeforeAnyWork) {
  const auto refusal = [](const Placement& placement, int microbatches) {
    return message_of([&] { (void)PartOrder(placement, microbatches); });
  };
  EXPECT_THAT(refusal(Placement::linear(1), 2'000'000'000),
              AllOf(HasSubstr("1 stages and 2000000000 microbatches"), HasSubstr("orders to decide, more than 3000"),
                    HasSubstr("plan without --exact")));
  EXPECT_THAT(refusal(Placement::linear(100'000), 1), HasSubstr("has 300000 F, I and W, more than 1500"));
  EXPECT_THAT(refusal(Placement::loop(1, 400), 2), HasSubstr("has 2400 F, I and W"));
  EXPECT_THAT(refusal(Placement::loop(1, 100), 4), HasSubstr("orders to decide, more than 3000"));
  EXPECT_EQ(PartOrder(Placement::linear(4), 6).pairs().size(), 4U * 3 * 15) << "what is counted before is exact here";
}

}  // namespace
}  // namespace stagecraft::detail
