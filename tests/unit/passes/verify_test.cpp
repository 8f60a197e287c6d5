#include "stagecraft/passes/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/passes/pass.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/generator.h"

namespace stagecraft {
namespace {

using testing::HasSubstr;

Verdict verdict_of(const std::string& csv) { return verify(Schedule::from_rows(parse_csv(csv))); }

struct Faulty {
  const char* what;
  const char* csv;
  int rank;
  int step;
  const char* says;
};

class Fault : public testing::TestWithParam<Faulty> {};

TEST_P(Fault, IsNamedWithRankStepAndAction) {
  const Verdict verdict = verdict_of(GetParam().csv);
  ASSERT_TRUE(verdict.fault);
  EXPECT_FALSE(verdict.ok());
  for (const CommModel model : kCommModels) EXPECT_FALSE(verdict.ok(model));
  EXPECT_EQ(verdict.fault->rank, RankId(GetParam().rank)) << verdict.fault->message;
  EXPECT_EQ(verdict.fault->step, GetParam().step) << verdict.fault->message;
  EXPECT_THAT(verdict.fault->message, HasSubstr(GetParam().says));
  EXPECT_THAT(verdict.fault->message, HasSubstr(to_text(verdict.fault->action)));
  EXPECT_THAT(verdict.fault->message, testing::Not(HasSubstr("\n")));
}

INSTANTIATE_TEST_SUITE_P(
    Verify, Fault,
    testing::Values(
        Faulty{"MissingForwardOfABackward", "0F0,0B0,0B1\n", 0, -1, "0F1 is missing"},
        Faulty{"MissingForward", "0F0,0F1,0B0,0B1\n1F0,1B0\n", 1, -1, "1F1 is missing"},
        Faulty{"MissingBackward", "0F0,0F1,0B0\n", 0, -1, "0B1 is missing"},
        Faulty{"MissingWeightPart", "0F0,0F1,0I0,0W0,0I1\n", 0, -1, "0W1 is missing"},
        Faulty{"OnlyInputParts", "0F0,0I0\n", 0, -1, "0W0 is missing"},
        Faulty{"BackwardOnOneStageOnly", "0F0,0B0\n1F0\n", 1, -1, "1B0 is missing"},
        Faulty{"RepeatedForward", "0F0,0F0,0B0\n", 0, 1, "stands twice"},
        Faulty{"RepeatedBackward", "0F0,0B0,0B0\n", 0, 2, "stands twice"},
        Faulty{"BothBAndI", "0F0,0B0,0I0,0W0\n", 0, 2, "its backward has run already"},
        Faulty{"WeightPartOfAFullBackward", "0F0,0B0,0W0\n", 0, 2, "its I does not stand before it"},
        Faulty{"BackwardBeforeForward", "0B0,0F0\n", 0, 0, "its F does not stand before it"},
        Faulty{"WeightBeforeInput", "0F0,0W0,0I0\n", 0, 1, "its I does not stand before it"},
        Faulty{"SameRankForwardOrder", "1F0,0F0\n", 0, 0, "the F of the stage before it"},
        Faulty{"SameRankBackwardOrder", "0F0,1F0,0B0,1B0\n", 0, 2, "the backward of the stage after it"},
        Faulty{"FaultInsideAnOverlap", "0F0,(0F1;0B2)OVERLAP_F_B,0F2,0B0,0B1\n", 0, 1,
               "its F does not stand before it"},
        Faulty{"OverlapOfAForwardWithItsOwnBackward", "0F0,(1F0;1B0)OVERLAP_F_B,0B0\n", 0, 1,
               "a backward cannot run together with its own forward"},
        Faulty{"SendBeforeCompute", "0SEND_F0,0F0\n1RECV_F0,1F0\n", 0, 0, "nothing to send yet"},
        Faulty{"GradientSentBeforeBackward", "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1SEND_B0,1B0\n", 1, 2,
               "nothing to send yet"},
        Faulty{"ComputeBeforeReceive", "0F0,0SEND_F0\n1F0,1RECV_F0\n", 1, 0, "its RECV_F does not stand before it"},
        Faulty{"MissingReceive", "0F0,0SEND_F0\n1F0\n", 1, 0, "its RECV_F does not stand before it"},
        Faulty{"MissingSend", "0F0\n1RECV_F0,1F0\n", 0, -1, "0SEND_F0 is missing"},
        Faulty{"MissingGradientSend", "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0\n", 1, -1, "1SEND_B0 is missing"},
        Faulty{"RepeatedReceive", "0F0,0SEND_F0\n1RECV_F0,1RECV_F0,1F0\n", 1, 1, "stands twice"},
        Faulty{"GradientReceivedInAForwardOnlySchedule", "0F0,0SEND_F0,0RECV_B0\n1RECV_F0,1F0\n", 1, -1,
               "in a schedule without backwards"},
        Faulty{"SendOnTheWrongRank", "0F0\n1RECV_F0,1F0,0SEND_F0\n", 1, 2, "its stage lives on rank 0"},
        Faulty{"MessageToNobody", "0F0,0SEND_F0\n", 0, 1, "no stage to exchange it with"},
        Faulty{"MessageOnOneRank", "0F0,0SEND_F0,1RECV_F0,1F0\n", 0, 1, "both stages live on this rank"},
        Faulty{"MessageOfNoMicrobatch", "0F0,0SEND_F0,0SEND_F4\n1RECV_F0,1F0\n", 0, 2, "only microbatches 0 to 0"},
        Faulty{"UnshardTwice", "0UNSHARD,0UNSHARD,0F0,0RESHARD\n", 0, 1, "unsharded already"},
        Faulty{"ReshardFirst", "0RESHARD,0UNSHARD,0F0\n", 0, 0, "not unsharded here"},
        Faulty{"ReshardTooEarly", "0UNSHARD,0F0,0RESHARD,0B0\n", 0, 3, "resharded here"},
        Faulty{"UnshardTooLate", "0F0,0UNSHARD,0B0,0RESHARD\n", 0, 1, "computed before without an UNSHARD"},
        Faulty{"LeftUnsharded", "0UNSHARD,0F0,0B0\n", 0, -1, "0RESHARD is missing"},
        Faulty{"ReduceTooEarly", "0F0,0F1,0B0,0REDUCE_GRAD,0B1\n", 0, 3, "weight parts still to come"},
        Faulty{"ReduceTwice", "0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n", 0, 3, "reduced already"},
        Faulty{"ReduceOnOneStageOnly", "0F0,0B0,0REDUCE_GRAD\n1F0,1B0\n", 1, -1, "1REDUCE_GRAD is missing"},
        Faulty{"ReduceWithoutBackward", "0F0,0REDUCE_GRAD\n", 0, 1, "weight parts still to come"},
        Faulty{"EmptyRank", "0F0\n\n", 1, -1, "every action is missing"},
        Faulty{"IdleRank", "0F0\n,,\n", 1, -1, "every action is missing"},
        Faulty{"AbsurdMicrobatch", "0F2000000000\n", 0, -1, "0F0 is missing"}),
    [](const auto& test) { return test.param.what; });

TEST(Verify, ShowsTheTableAroundTheFault) {
  const Verdict verdict = verdict_of("0F0,0F1,0B0,0B1\n1F0,1B0,1B1,1F1\n");
  ASSERT_TRUE(verdict.fault);
  EXPECT_EQ(verdict.fault->full_text(),
            "rank 1, step 2: 1B1: its F does not stand before it: a backward comes after the forward\n"
            "        Rank 0  Rank 1\n"
            "Step 0: 0F0     1F0\n"
            "Step 1: 0F1     1B0\n"
            "Step 2: 0B0     1B1  <-- here: rank 1\n"
            "Step 3: 0B1     1F1\n");
}

TEST(Verify, NamesTheCycleOfAComputeOrderThatCannotExecute) {
  const Verdict verdict = verdict_of("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n");
  ASSERT_TRUE(verdict.fault);
  const auto& cycle = verdict.fault->cycle;
  ASSERT_EQ(cycle.size(), 2U);
  EXPECT_EQ(to_text(cycle[0].action), "0B0");
  EXPECT_EQ(to_text(cycle[0].on_action), "1B0");
  EXPECT_EQ(cycle[0].on_step, 3);
  EXPECT_EQ(to_text(cycle[1].action), "1F1");
  EXPECT_EQ(to_text(cycle[1].on_action), "0F1");
  EXPECT_EQ(cycle[1].on_rank, RankId(0));
  EXPECT_THAT(verdict.fault->full_text(), HasSubstr("rank 1 at step 0 (1F1) waits for 0F1 of rank 0 at step 2\n"));
}

TEST(Verify, NamesTheInputPartWhereTheBackwardIsSplit) {
  const Verdict verdict = verdict_of("0F0,0I0,0W0,0F1,0I1,0W1\n1F1,1I1,1W1,1F0,1I0,1W0\n");
  ASSERT_TRUE(verdict.fault);
  EXPECT_EQ(to_text(verdict.fault->cycle[0].on_action), "1I0");
}

TEST(Verify, FindsWrongOrderPerPairOnlyWhereOrderCounts) {
  const Verdict verdict = verdict_of(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
  EXPECT_FALSE(verdict.fault);
  EXPECT_TRUE(verdict.ok(CommModel::kTagged));
  const Refusal* in_order = verdict.refusal(CommModel::kInOrder);
  ASSERT_NE(in_order, nullptr);
  EXPECT_THAT(in_order->message,
              HasSubstr("rank 1, step 0: 1RECV_F1: it is receive 1 from rank 0, whose send 1 to here is 0SEND_F0"));
  ASSERT_NE(verdict.refusal(CommModel::kRendezvous), nullptr);
}

TEST(Verify, FindsTheDeadlockOfBlockingSends) {
  // Both ranks send first: fine when sends do not block.
  const Verdict verdict = verdict_of(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  EXPECT_TRUE(verdict.ok(CommModel::kTagged));
  EXPECT_TRUE(verdict.ok(CommModel::kInOrder));
  const Refusal* blocked = verdict.refusal(CommModel::kRendezvous);
  ASSERT_NE(blocked, nullptr);
  ASSERT_EQ(blocked->cycle.size(), 2U);
  EXPECT_EQ(to_text(blocked->cycle[0].action), "0SEND_F1");
  EXPECT_EQ(to_text(blocked->cycle[0].on_action), "1RECV_F1");
  EXPECT_EQ(to_text(blocked->cycle[1].action), "1SEND_B0");
  EXPECT_EQ(to_text(blocked->cycle[1].on_action), "0RECV_B0");
}

TEST(Verify, ACycleAmongSendsAndComputesIsAFaultInEveryModel) {
  const Verdict verdict = verdict_of(
      "0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
      "1RECV_F1,1F1,1RECV_F0,1F0,1B0,1SEND_B0,1B1,1SEND_B1\n");
  ASSERT_TRUE(verdict.fault);
  EXPECT_EQ(verdict.fault->cycle.size(), 2U);
}

TEST(Verify, AcceptsPartialLowering) {
  EXPECT_TRUE(verdict_of("0UNSHARD,0F0,0B0,0RESHARD\n1F0,1B0\n").ok());
  EXPECT_TRUE(verdict_of("0F0,0SEND_F0\n,1RECV_F0,,1F0\n").ok()) << "forward only, with idle slots";
}

TEST(Verify, NeverTrustsAScheduleBuiltByHand) {
  Schedule schedule = Schedule::from_rows(parse_csv("0F0,0B0\n"));
  schedule.rows[0].push_back(Action::forward(StageId(7), MicrobatchId(0)));
  EXPECT_THAT(verify(schedule).fault->message, HasSubstr("there are only stages 0 to 0"));
  schedule.rows.emplace_back();
  EXPECT_THAT(verify(schedule).fault->message, HasSubstr("2 rows, 1 ranks"));
  EXPECT_FALSE(verify(Schedule{}).ok());
}

TEST(RequireValid, ThrowsForTheModelAskedFor) {
  Schedule schedule = make_schedule("ZBVZeroBubble", {.ranks = 2, .microbatches = 3});
  run_passes(schedule, "send_recv,defer_receives");
  EXPECT_NO_THROW(require_valid(schedule, CommModel::kTagged));
  try {
    require_valid(schedule, CommModel::kInOrder);
    FAIL();
  } catch (const ScheduleError& error) {
    EXPECT_GE(error.step(), 0);
    EXPECT_FALSE(error.action().empty());
    EXPECT_THAT(error.what(), HasSubstr("<-- here"));
  }
}

}  // namespace
}  // namespace stagecraft
