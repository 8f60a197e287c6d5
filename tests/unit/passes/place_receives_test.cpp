#include <gtest/gtest.h>

#include <algorithm>

#include "stagecraft/passes/pass.h"
#include "stagecraft/passes/verify.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/generator.h"
#include "stagecraft/sim/step_simulator.h"

namespace stagecraft {
namespace {

std::string placed(const std::string& csv) {
  Schedule schedule = Schedule::from_rows(parse_csv(csv));
  place_receives(schedule);
  std::string text = to_csv(schedule);
  std::erase(text, '\r');
  return text;
}

TEST(PlaceReceives, PostsWhileTheSenderIsStillComputing) {
  // Rank 1 receives F1 after F0 and F2 after B0: each is sent just when the action before it ends.
  EXPECT_EQ(placed("0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2\n"
                   "1RECV_F0,1RECV_F1,1RECV_F2,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1F2,1B2,1SEND_B2\n"),
            "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1RECV_F2,1SEND_B0,1F1,1B1,1SEND_B1,1F2,1B2,1SEND_B2\n");
}

TEST(PlaceReceives, LeavesShardingBetweenTheLastSendAndTheNextReceive) {
  EXPECT_EQ(placed("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
                   "1RECV_F0,1UNSHARD,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n"),
            "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
            "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n");
}

TEST(PlaceReceives, MendsTheOrderThatDeferringBreaks) {
  // The settings in which deferred receives take each other's messages on a transport without tags.
  struct Setting {
    const char* name;
    int ranks;
    int microbatches;
  };
  for (const auto& [name, ranks, microbatches] :
       {Setting{"ZBVZeroBubble", 2, 3}, {"InterleavedZeroBubble", 2, 3}, {"DualPipeV", 4, 8}}) {
    Schedule schedule = make_schedule(name, {.ranks = ranks, .stages_per_rank = 2, .microbatches = microbatches});
    run_passes(schedule, "send_recv,defer_receives");
    EXPECT_TRUE(verify(schedule).ok(CommModel::kTagged)) << name;
    EXPECT_FALSE(verify(schedule).ok(CommModel::kInOrder)) << name;
    place_receives(schedule);
    EXPECT_TRUE(verify(schedule).ok()) << name;
  }
}

TEST(PlaceReceives, DoesNotLengthenTheSchedulesOfTheHouse) {
  for (const Generator* generator : generators()) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      for (const int microbatches : {1, 4, 5, 2 * ranks}) {
        Schedule early = make_schedule(generator->name, {.ranks = ranks, .microbatches = microbatches});
        send_recv(early);
        Schedule late = early;
        place_receives(late);
        EXPECT_LE(count_steps(late), count_steps(early)) << generator->name << " p" << ranks << " m" << microbatches;
        EXPECT_EQ(late.actions(), early.actions());
      }
    }
  }
}

}  // namespace
}  // namespace stagecraft
