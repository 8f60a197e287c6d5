#include "stagecraft/schedule/placement.h"

#include <gtest/gtest.h>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

std::vector<int> stages_of(const Placement& placement, int rank) {
  std::vector<int> stages;
  for (const StageId stage : placement.stages_of(RankId(rank))) stages.push_back(stage.value);
  return stages;
}

TEST(Placement, LoopGoesRoundTheRanks) {
  const Placement loop = Placement::loop(3, 2);
  EXPECT_EQ(loop.style(), "loop");
  EXPECT_EQ(stages_of(loop, 0), (std::vector<int>{0, 3}));
  EXPECT_EQ(stages_of(loop, 2), (std::vector<int>{2, 5}));
  EXPECT_EQ(loop.local_index(StageId(3)), 1);
}

TEST(Placement, VTurnsRoundOnTheLastRank) {
  const Placement v = Placement::v(3, 3);
  EXPECT_EQ(v.style(), "v");
  EXPECT_EQ(stages_of(v, 0), (std::vector<int>{0, 5, 6}));
  EXPECT_EQ(stages_of(v, 1), (std::vector<int>{1, 4, 7}));
  EXPECT_EQ(stages_of(v, 2), (std::vector<int>{2, 3, 8}));
  EXPECT_TRUE(v.share_rank(StageId(2), StageId(3)));
  EXPECT_FALSE(v.share_rank(StageId(1), StageId(2)));
}

TEST(Placement, AnyMapIsKept) {
  const Placement custom(2, {RankId(1), RankId(1), RankId(0)});
  EXPECT_EQ(custom.style(), "custom");
  EXPECT_EQ(stages_of(custom, 0), (std::vector<int>{2}));
  EXPECT_EQ(stages_of(custom, 1), (std::vector<int>{0, 1}));
  EXPECT_EQ(Placement::linear(4).style(), "linear");
}

TEST(Placement, RefusesWhatCannotBe) {
  EXPECT_THROW(Placement(2, {RankId(2)}), InvalidArgument);
  EXPECT_THROW(Placement(2, {RankId(-1)}), InvalidArgument);
  EXPECT_THROW(Placement(0, {}), InvalidArgument);
  EXPECT_THROW(Placement::loop(0, 1), InvalidArgument);
  EXPECT_THROW(Placement::v(1, 0), InvalidArgument);
}

}  // namespace
}  // namespace stagecraft
