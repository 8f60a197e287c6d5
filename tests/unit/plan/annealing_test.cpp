#include "annealing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace stagecraft::detail {
namespace {

constexpr int kMore = 0;
constexpr std::uint64_t kSeed = 5;

/// Trials of a search that may dispatch `parts` parts.
std::int64_t trials(const Problem& problem, Dispatcher& dispatcher, double parts) {
  BlockSearch search(problem, kMore, kSeed);
  search.run(dispatcher, parts, 0, [] { return false; });
  return search.trials();
}

// The searches of a thread share a dispatcher, and which of them a thread gets depends on the machine.
TEST(BlockSearch, EndsAtTheSameTrialWhateverItsDispatcherDidBefore) {
  const Problem problem(Costs{}, Placement::v(4, 2), 6, 0);
  Dispatcher fresh(problem);
  const std::int64_t least = trials(problem, fresh, 1);
  const double just_over = std::nextafter(fresh.parts_done(), std::numeric_limits<double>::infinity());
  Dispatcher unused(problem);
  Dispatcher used(problem);
  for (int i = 0; i < 20; ++i) trials(problem, used, 1);
  EXPECT_EQ(trials(problem, unused, just_over), least + 1);
  EXPECT_EQ(trials(problem, used, just_over), least + 1);
}

}  // namespace
}  // namespace stagecraft::detail
