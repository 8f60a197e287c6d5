#include "stagecraft/schedule/action.h"

#include <gtest/gtest.h>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

const StageId kStage(2);
const MicrobatchId kMicrobatch(7);

TEST(ActionText, WritesEveryKind) {
  EXPECT_EQ(to_text(Action::forward(kStage, kMicrobatch)), "2F7");
  EXPECT_EQ(to_text(Action::backward(kStage, kMicrobatch)), "2B7");
  EXPECT_EQ(to_text(Action::backward_input(kStage, kMicrobatch)), "2I7");
  EXPECT_EQ(to_text(Action::backward_weight(kStage, kMicrobatch)), "2W7");
  EXPECT_EQ(to_text({ActionKind::kSendForward, kStage, kMicrobatch}), "2SEND_F7");
  EXPECT_EQ(to_text({ActionKind::kRecvForward, kStage, kMicrobatch}), "2RECV_F7");
  EXPECT_EQ(to_text({ActionKind::kSendBackward, kStage, kMicrobatch}), "2SEND_B7");
  EXPECT_EQ(to_text({ActionKind::kRecvBackward, kStage, kMicrobatch}), "2RECV_B7");
  EXPECT_EQ(to_text(Action::of_stage(ActionKind::kUnshard, kStage)), "2UNSHARD");
  EXPECT_EQ(to_text(Action::of_stage(ActionKind::kReshard, kStage)), "2RESHARD");
  EXPECT_EQ(to_text(Action::of_stage(ActionKind::kReduceGrad, kStage)), "2REDUCE_GRAD");
  EXPECT_EQ(to_text(Action::idle()), "");
}

TEST(ActionText, WritesBothHalvesOfAnOverlapInTheirOrder) {
  const Action forward = Action::forward(StageId(0), MicrobatchId(5));
  const Action backward = Action::backward(StageId(7), MicrobatchId(2));
  EXPECT_EQ(to_text(Action::overlap(forward, backward)), "(0F5;7B2)OVERLAP_F_B");
  EXPECT_EQ(to_text(Action::overlap(backward, forward)), "(7B2;0F5)OVERLAP_F_B");
}

class ReadsBack : public testing::TestWithParam<const char*> {};

TEST_P(ReadsBack, Same) { EXPECT_EQ(to_text(to_action(GetParam())), GetParam()); }

INSTANTIATE_TEST_SUITE_P(ActionText, ReadsBack,
                         testing::Values("2F0", "0I12", "16777215W2147483646", "3B1", "1UNSHARD", "2RESHARD",
                                         "9REDUCE_GRAD", "3SEND_F1", "3RECV_F1", "3SEND_B1", "3RECV_B1",
                                         "(0F5;7B2)OVERLAP_F_B", "(7I2;0F5)OVERLAP_F_B", ""));

TEST(ActionText, IgnoresBlanksAround) {
  EXPECT_EQ(to_action("  2F0\t"), to_action("2F0"));
  EXPECT_EQ(to_action("   "), Action::idle());
  EXPECT_EQ(to_action("( 0F5 ; 7B2 )OVERLAP_F_B"), to_action("(0F5;7B2)OVERLAP_F_B"));
}

class Refuses : public testing::TestWithParam<const char*> {};

TEST_P(Refuses, WithTheValueAndTheRule) {
  try {
    to_action(GetParam());
    FAIL() << "'" << GetParam() << "' was taken for an action";
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(GetParam()), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_GT(message.size(), std::string(GetParam()).size() + 30) << message;
  }
}

INSTANTIATE_TEST_SUITE_P(ActionText, Refuses,
                         testing::Values("1F0junk", "F0", "1", "1f0", "1F", "-1F0", "1F-1", "1X0", "2UNSHARD3", "1FF0",
                                         "1F0 2F0", "16777216F0", "1F2147483647", "99999999999999999999F0",
                                         "0F99999999999999999999", "1OVERLAP_F_B", "(0F5)OVERLAP_F_B", "()OVERLAP_F_B",
                                         "(0F5;7B2)", "(0F5;7B2)OVERLAP", "(0F5;7B2)OVERLAP_F_B1",
                                         "(0F5;7F2)OVERLAP_F_B", "(0F5;7W2)OVERLAP_F_B", "(0B5;7B2)OVERLAP_F_B",
                                         "(0F5;7B2;1F1)OVERLAP_F_B", "(0F5;(0F5;7B2)OVERLAP_F_B)OVERLAP_F_B",
                                         "(0F5;7B2OVERLAP_F_B", "1.5F0"));

TEST(Action, FitsSixteenBytesAndKeepsItsPartsApart) {
  static_assert(sizeof(Action) == 16 && std::is_trivially_copyable_v<Action>);
  const Action overlap = to_action("(16777215F2147483646;3B4)OVERLAP_F_B");
  EXPECT_EQ(overlap.kind(), ActionKind::kOverlap);
  EXPECT_EQ(overlap.first(), Action::forward(StageId(kMaxStage), MicrobatchId(kMaxMicrobatch)));
  EXPECT_EQ(overlap.second(), Action::backward(StageId(3), MicrobatchId(4)));
}

TEST(Action, CounterpartOfACounterpartIsTheAction) {
  for (const char* text : {"3SEND_F1", "3RECV_F1", "3SEND_B1", "3RECV_B1"}) {
    const Action action = to_action(text);
    EXPECT_EQ(counterpart(counterpart(action)), action) << text;
    EXPECT_EQ(counterpart(action).stage(), peer_stage(action)) << text;
  }
  EXPECT_EQ(to_text(counterpart(to_action("3SEND_F1"))), "4RECV_F1");
  EXPECT_EQ(to_text(counterpart(to_action("3SEND_B1"))), "2RECV_B1");
}

}  // namespace
}  // namespace stagecraft
