#include "stagecraft/sim/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/generator.h"

namespace stagecraft {
namespace {

using testing::ElementsAre;

std::vector<int> peaks(const char* csv) { return peak_live_activations(Schedule::from_rows(parse_csv(csv))); }

TEST(Liveness, AnActivationLivesFromItsForwardToItsBOrW) {
  EXPECT_THAT(peaks("0F0,0F1,0B0,0F2,0B1,0B2\n"), ElementsAre(2));
  EXPECT_THAT(peaks("0F0,0I0,0F1,0I1,0W0,0W1\n"), ElementsAre(2)) << "the I does not end it";
  EXPECT_THAT(peaks("0F0,0F1\n1F0,1F1\n"), ElementsAre(1, 1)) << "forward only";
}

TEST(Liveness, BothHalvesOfAnOverlapLiveTogether) {
  EXPECT_THAT(peaks("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"), ElementsAre(2));
}

TEST(Liveness, MeetsTheMemoryFormulas) {
  const auto peak = [](const char* name, int p, int m) {
    return peak_live_activations(make_schedule(name, {.ranks = p, .microbatches = m}));
  };
  EXPECT_THAT(peak("GPipe", 3, 7), ElementsAre(7, 7, 7));
  EXPECT_THAT(peak("1F1B", 4, 7), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(peak("Eager1F1B", 4, 9), ElementsAre(7, 5, 3, 1));
  EXPECT_THAT(peak("ZB-H1", 4, 9), ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(peak("ZB-H2", 4, 9), ElementsAre(7, 7, 7, 7));
  EXPECT_THAT(peak("ZBVZeroBubble", 4, 9), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(peak("DualPipeV", 4, 10), ElementsAre(9, 9, 9, 9));
  EXPECT_THAT(peak("Interleaved1F1B", 4, 8), ElementsAre(11, 9, 7, 5));
  EXPECT_THAT(peak("LoopedBFS", 2, 3), ElementsAre(6, 6));
  for (const int p : {3, 8, 16, 24}) {
    EXPECT_THAT(peak("V-Half", p, 3 * p), testing::Each(testing::Le(2 * (p / 2) + 2)));
    EXPECT_THAT(peak("V-Min", p, 3 * p), testing::Each(testing::Le(2 * ((p + 4) / 3))));
  }
}

}  // namespace
}  // namespace stagecraft
