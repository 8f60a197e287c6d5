#include "stagecraft/schedule/dataflow.h"

#include <gtest/gtest.h>

namespace stagecraft {
namespace {

TEST(RankSet, WalksInAscendingOrderAcrossWords) {
  RankSet set(200);
  for (const std::size_t rank : {199U, 0U, 63U, 64U, 130U}) set.insert(rank);
  std::vector<std::size_t> walked;
  for (std::size_t r = set.next(0); r != RankSet::npos; r = set.next(r + 1)) walked.push_back(r);
  EXPECT_EQ(walked, (std::vector<std::size_t>{0, 63, 64, 130, 199}));
}

TEST(RankSet, SeesMembersAddedAheadWhileWalking) {
  RankSet set(128);
  set.insert(3);
  std::vector<std::size_t> walked;
  for (std::size_t r = set.next(0); r != RankSet::npos; r = set.next(r + 1)) {
    walked.push_back(r);
    if (r == 3) {
      set.insert(1);    // behind: the next walk
      set.insert(100);  // ahead: this walk
    }
  }
  EXPECT_EQ(walked, (std::vector<std::size_t>{3, 100}));
  EXPECT_EQ(set.next(0), 1U);
}

TEST(RankSet, ErasesAndAnswersPastItsEnd) {
  RankSet set(64);
  set.insert(63);
  EXPECT_TRUE(set.contains(63));
  set.erase(63);
  EXPECT_FALSE(set.contains(63));
  EXPECT_EQ(set.next(0), RankSet::npos);
  EXPECT_EQ(set.next(64), RankSet::npos);
}

}  // namespace
}  // namespace stagecraft
