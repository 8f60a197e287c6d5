#include "stagecraft/passes/pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/core/error.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/generator.h"
#include "support/message_of.h"

namespace stagecraft {
namespace {

using testing::HasSubstr;

std::string after(const char* passes, const std::string& csv) {
  Schedule schedule = Schedule::from_rows(parse_csv(csv));
  run_passes(schedule, passes);
  std::string text = to_csv(schedule);
  std::erase(text, '\r');
  return text;
}

std::string refusal_of(const char* passes, const std::string& csv) {
  try {
    after(passes, csv);
  } catch (const ScheduleError& error) {
    return error.what();
  }
  return "";
}

TEST(MergeBackward, JoinsOnlyAnIAndItsOwnWNextToEachOther) {
  EXPECT_EQ(after("merge_backward", "0F0,0F1,0I0,,0W0,0I1,0W1\n"), "0F0,0F1,0B0,0B1\n");
  EXPECT_EQ(after("merge_backward", "0F0,0F1,0I0,0I1,0W0,0W1\n"), "0F0,0F1,0I0,0I1,0W0,0W1\n");
  EXPECT_EQ(after("merge_backward", "0F0,1F0,1I0,0I0,0W0,1W0\n"), "0F0,1F0,1I0,0B0,1W0\n");
}

TEST(UnshardReshard, PrefetchesTheNextThreeStagesAndDropsTheRest) {
  EXPECT_EQ(
      after("unshard_reshard", "0F0,1F0,2F0,3F0,3B0,,2B0,1B0,0B0\n"),
      "0UNSHARD,1UNSHARD,2UNSHARD,0F0,0RESHARD,3UNSHARD,1F0,2F0,3F0,3B0,3RESHARD,0UNSHARD,2B0,2RESHARD,1B0,1RESHARD,"
      "0B0,0RESHARD\n");
}

TEST(UnshardReshard, MaxActiveIsAnOption) {
  Schedule schedule = Schedule::from_rows(parse_csv("0F0,1F0,1B0,0B0\n"));
  unshard_reshard(schedule, 1);
  std::string text = to_csv(schedule);
  std::erase(text, '\r');
  EXPECT_EQ(text, "0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1B0,1RESHARD,0UNSHARD,0B0,0RESHARD\n");
  EXPECT_THROW(unshard_reshard(schedule, 0), InvalidArgument);
}

TEST(Passes, TakeANumberWhereOneIsMeant) {
  const std::string rows = "0F0,1F0,2F0,3F0,3B0,,2B0,1B0,0B0\n";
  Schedule expected = Schedule::from_rows(parse_csv(rows));
  unshard_reshard(expected, 2);
  Schedule named = Schedule::from_rows(parse_csv(rows));
  run_passes(named, "unshard_reshard=2");
  EXPECT_EQ(to_csv(named), to_csv(expected));
  EXPECT_EQ(after(" unshard_reshard = 2 , reduce_grad", rows), after("unshard_reshard=2,reduce_grad", rows));
  EXPECT_EQ(after("unshard_reshard=3", rows), after("unshard_reshard", rows));
  EXPECT_NE(after("unshard_reshard=1", rows), after("unshard_reshard=2", rows));
  EXPECT_THAT(message_of([&] { after("unshard_reshard=0", rows); }), HasSubstr("at least 1 stage"));
  EXPECT_THAT(message_of([&] { after("unshard_reshard=two", rows); }), HasSubstr("'two', which is not a whole number"));
  EXPECT_THAT(message_of([&] { after("unshard_reshard=", rows); }), HasSubstr("not a whole number"));
  EXPECT_THAT(message_of([&] { after("send_recv=2", rows); }), HasSubstr("takes no number"));
}

TEST(UnshardReshard, AnOverlapBringsBothItsStages) {
  // From 1F1 on, stages 1 and 2 and then both 0 and 3 are needed: four are active.
  EXPECT_EQ(
      after("unshard_reshard",
            "0F0,0F1,1F0,2F0,3F0,1F1,2F1,(0F2;3B0)OVERLAP_F_B,2B0,1B0,0B0,3F1,3B1,2B1,1B1,0B1,1F2,2F2,3F2,3B2,2B2,"
            "1B2,0B2\n"),
      "0UNSHARD,1UNSHARD,2UNSHARD,0F0,0F1,0RESHARD,3UNSHARD,1F0,2F0,3F0,0UNSHARD,1F1,1RESHARD,2F1,"
      "(0F2;3B0)OVERLAP_F_B,3RESHARD,1UNSHARD,2B0,2RESHARD,3UNSHARD,1B0,1RESHARD,2UNSHARD,0B0,0RESHARD,1UNSHARD,"
      "3F1,3B1,3RESHARD,0UNSHARD,2B1,1B1,0B1,0RESHARD,3UNSHARD,1F2,2F2,3F2,3B2,3RESHARD,"
      "0UNSHARD,2B2,2RESHARD,1B2,1RESHARD,0B2,0RESHARD\n");
}

TEST(ReduceGrad, FollowsTheLastWeightPartOfEachStage) {
  EXPECT_EQ(after("reduce_grad", "0F0,0F1,0I0,0I1,0W0,,0W1\n1F0,1F1,1B0,1B1\n"),
            "0F0,0F1,0I0,0I1,0W0,0W1,0REDUCE_GRAD\n1F0,1F1,1B0,1B1,1REDUCE_GRAD\n");
  EXPECT_EQ(after("reduce_grad", "0F0,1F0,1B0,0F1,1F1,1B1,0B0,0B1\n"),
            "0F0,1F0,1B0,0F1,1F1,1B1,1REDUCE_GRAD,0B0,0B1,0REDUCE_GRAD\n");
}

TEST(SendRecv, WritesBothEndsAtTheSameMoment) {
  EXPECT_EQ(after("send_recv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

TEST(SendRecv, HandsOverOnOneRankWithoutAMessage) {
  EXPECT_EQ(after("send_recv", "0F0,1F0,1B0,0B0\n"), "0F0,1F0,1B0,0B0\n");
}

TEST(SendRecv, RefusesAnOrderThatCannotExecute) {
  EXPECT_THAT(refusal_of("send_recv", "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"), HasSubstr("rank 0, step 1: 0B0"));
}

TEST(DeferReceives, MovesEachReceiveToItsConsumer) {
  EXPECT_EQ(after("send_recv,defer_receives", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
}

TEST(DeferReceives, RefusesAReceiveNobodyUses) {
  EXPECT_THAT(refusal_of("defer_receives", "0F0,0SEND_F0\n1RECV_F0,1F0,1RECV_F0\n"), HasSubstr("never used"));
}

TEST(Passes, RefuseInputThatIsLoweredAlready) {
  const std::string lowered = after("unshard_reshard,reduce_grad,send_recv", "0F0,0B0\n1F0,1B0\n");
  EXPECT_THAT(refusal_of("unshard_reshard", lowered), HasSubstr("lowered already"));
  EXPECT_THAT(refusal_of("reduce_grad", lowered), HasSubstr("REDUCE_GRAD already"));
  EXPECT_THAT(refusal_of("send_recv", lowered), HasSubstr("communication already"));
}

TEST(Passes, RefuseActionsThatDoNotFitTheSchedule) {
  EXPECT_THAT(refusal_of("reduce_grad", "0F0,0B0,5UNSHARD\n"), HasSubstr("there are only stages 0 to 0"));
  EXPECT_THAT(refusal_of("send_recv", "0F0,0B0\n1F0,1B0,0UNSHARD\n"), HasSubstr("its stage lives on rank 0"));
  EXPECT_THAT(refusal_of("place_receives", "0F0,0SEND_F1\n1F0\n"), HasSubstr("only microbatches 0 to 0"));
  EXPECT_THAT(refusal_of("place_receives", "0F0,1F0,0SEND_F0\n"), HasSubstr("both stages live on this rank"));
  EXPECT_THAT(refusal_of("place_receives", "0F0,0RECV_F0\n"), HasSubstr("no stage to exchange it with"));
  EXPECT_THAT(refusal_of("send_recv", "0F0\n1F0,1F1\n"), HasSubstr("0F1 is missing"));
  EXPECT_THAT(refusal_of("send_recv", "0F0\n\n"), HasSubstr("rank 1: every action is missing"));
  EXPECT_THAT(refusal_of("reduce_grad", "0F2000000000\n"), HasSubstr("0F0 is missing"));
}

TEST(Passes, AreFoundByNameBeforeAnyRuns) {
  Schedule schedule = Schedule::from_rows(parse_csv("0F0,,0B0\n"));
  EXPECT_THROW(run_passes(schedule, "merge_backward,no_such_pass"), InvalidArgument);
  EXPECT_EQ(schedule.idle_slots(), 1) << "the first pass ran although the list is wrong";
  run_passes(schedule, " merge_backward , reduce_grad ");
  EXPECT_EQ(to_csv(schedule), "0F0,0B0,0REDUCE_GRAD\r\n");
  run_passes(schedule, "");
  for (const char* list : {",", "merge_backward,", "merge_backward,,reduce_grad"}) {
    EXPECT_THROW(run_passes(schedule, list), InvalidArgument) << list;
  }
  for (const Pass& pass : passes()) EXPECT_EQ(&find_pass(pass.name), &pass);
}

TEST(Passes, DefaultLoweringIsPyTorchs) {
  EXPECT_EQ(after(kDefaultLowering.data(), "0F0,0B0\n1F0,1B0\n"),
            "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
            "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n");
}

}  // namespace
}  // namespace stagecraft
