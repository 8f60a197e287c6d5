#include "stagecraft/graph/cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "support/program_builder.h"

namespace stagecraft::graph {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<Size> kBatch = {{8, "s0"}, {4, {}}};

/// x -> a -> b -> c, with a weight each.
struct Chain : ProgramBuilder {
  ValueId x = user("x", kBatch);
  ValueId wa = parameter("a.weight");
  ValueId wb = parameter("b.weight");
  ValueId wc = parameter("c.weight");
  ValueId a = in("a").node("aten::mul.Tensor", {x, wa}, kBatch);
  ValueId b = in("b").node("aten::mul.Tensor", {a, wb}, kBatch);
  ValueId c = in("c").node("aten::mul.Tensor", {b, wc}, kBatch);
  Chain() { output(c); }
};

TEST(Cut, WithoutPlacesThereIsOneStage) {
  Chain chain;
  const CutProgram result = cut(chain.program(), {});
  ASSERT_EQ(result.stages.size(), 1U);
  EXPECT_THAT(result.stages[0].nodes, ElementsAre(0, 1, 2));
  EXPECT_THAT(result.stages[0].receives, ElementsAre(chain.x));
  EXPECT_THAT(result.stages[0].loads, ElementsAre(1, 2, 3));
  EXPECT_THAT(result.edges, IsEmpty());
}

TEST(Cut, EachStageTakesWhatTheOneBeforeMakes) {
  Chain chain;
  const CutProgram result = cut(chain.program(), {1, 2});
  ASSERT_EQ(result.stages.size(), 3U);
  EXPECT_THAT(result.stages[1].nodes, ElementsAre(1));
  EXPECT_THAT(result.stages[1].receives, ElementsAre(chain.a));
  EXPECT_THAT(result.stages[1].sends, ElementsAre(chain.b));
  EXPECT_THAT(result.stages[1].loads, ElementsAre(2));
  EXPECT_THAT(result.stages[2].sends, IsEmpty());
  ASSERT_EQ(result.edges.size(), 2U);
  EXPECT_EQ(result.edges[0].from, 0);
  EXPECT_EQ(result.edges[0].to, 1);
  EXPECT_THAT(result.ties, IsEmpty());
}

TEST(Cut, WhatIsUsedLaterIsSentToWhoUsesIt) {
  Chain chain;
  chain.output(chain.node("aten::add.Tensor", {chain.c, chain.a}, kBatch));
  const CutProgram result = cut(chain.program(), {1, 2});
  EXPECT_THAT(result.stages[1].receives, ElementsAre(chain.a));
  EXPECT_THAT(result.stages[2].receives, ElementsAre(chain.a, chain.b));
  EXPECT_THAT(result.stages[0].sends, ElementsAre(chain.a));  // once, for both
  EXPECT_EQ(result.edges.size(), 3U);
}

TEST(Cut, UserInputsGoToTheStageThatUsesThem) {
  ProgramBuilder builder;
  const ValueId x = builder.user("x", kBatch);
  const ValueId late = builder.user("late", kBatch);
  const ValueId a = builder.node("aten::relu", {x}, kBatch);
  builder.output(builder.node("aten::add.Tensor", {a, late}, kBatch));
  const CutProgram result = cut(builder.program(), {1});
  EXPECT_THAT(result.stages[0].receives, ElementsAre(x, late));
  EXPECT_THAT(result.stages[1].receives, ElementsAre(late, a));
}

TEST(Cut, ConstantsAreMadeAgain) {
  ProgramBuilder builder;
  const ValueId x = builder.user("x", kBatch);
  const ValueId table = builder.buffer("table");
  const ValueId cosine = builder.node("aten::cos", {table});
  const ValueId twice = builder.node("aten::add.Tensor", {cosine, cosine});
  const ValueId a = builder.node("aten::mul.Tensor", {x, twice}, kBatch);
  const ValueId b = builder.node("aten::mul.Tensor", {a, twice}, kBatch);
  builder.output(b);
  const CutProgram result = cut(builder.program(), {builder.maker(b)});
  EXPECT_THAT(result.stages[0].nodes, ElementsAre(0, 1, 2));
  EXPECT_THAT(result.stages[1].nodes, ElementsAre(0, 1, 3));
  EXPECT_THAT(result.stages[1].receives, ElementsAre(a));
  EXPECT_THAT(result.stages[0].loads, ElementsAre(1));
  EXPECT_THAT(result.stages[1].loads, ElementsAre(1));
  EXPECT_THAT(result.ties, IsEmpty());
}

TEST(Cut, RandomConstantsAreSent) {
  ProgramBuilder builder;
  const ValueId x = builder.user("x", kBatch);
  const ValueId noise = builder.node("aten::rand", {});
  const ValueId a = builder.node("aten::mul.Tensor", {x, noise}, kBatch);
  const ValueId b = builder.node("aten::mul.Tensor", {a, noise}, kBatch);
  builder.output(b);
  EXPECT_THAT(cut(builder.program(), {builder.maker(b)}).stages[1].receives, ElementsAre(noise, a));
}

TEST(Cut, SizesAreReadOffWhatIsReceived) {
  ProgramBuilder builder;
  const ValueId x = builder.user("x", kBatch);
  const ValueId size = builder.number("aten::sym_size.int", {x}, {8, "s0"});
  const ValueId a = builder.node("aten::relu", {x}, kBatch);
  const ValueId b = builder.node("aten::mul.Scalar", {a, size}, kBatch);
  builder.output(b);
  const CutProgram result = cut(builder.program(), {builder.maker(b)});
  EXPECT_THAT(result.stages[1].receives, ElementsAre(a));
  ASSERT_EQ(result.stages[1].sizes.size(), 1U);
  EXPECT_EQ(result.stages[1].sizes[0].number, size);
  EXPECT_EQ(result.stages[1].sizes[0].tensor, a);
  EXPECT_EQ(result.stages[1].sizes[0].dimension, 0);
}

TEST(Cut, ComputedSizesAreComputedAgain) {
  ProgramBuilder builder;
  const ValueId x = builder.user("x", kBatch);
  const ValueId size = builder.number("aten::sym_size.int", {x}, {8, "s0"});
  const ValueId a = builder.node("aten::relu", {x}, kBatch);
  const ValueId twice = builder.number("_operator.mul", {size}, {16, "2*s0"});
  const ValueId b = builder.node("aten::mul.Scalar", {a, twice}, kBatch);
  builder.output(b);
  const CutProgram result = cut(builder.program(), {builder.maker(b)});
  EXPECT_THAT(result.stages[0].nodes, ElementsAre(builder.maker(a)));
  EXPECT_THAT(result.stages[1].nodes, ElementsAre(builder.maker(twice), builder.maker(b)));
  EXPECT_EQ(result.stages[1].sizes.size(), 1U);
}

/// A size that no received tensor shows, read by a node before and behind the cut.
TEST(Cut, NumbersThatNoTensorShowsAreSent) {
  for (const bool reads_late : {false, true}) {
    ProgramBuilder builder;
    const ValueId x = builder.user("x", kBatch);
    const ValueId y = builder.node("aten::relu", {x}, kBatch);
    ValueId size = kNoValue;
    if (!reads_late) size = builder.number("aten::sym_size.int", {y}, {8, "s0"});
    const ValueId a = builder.node("aten::sum", {y}, {{4, {}}});
    if (reads_late) size = builder.number("aten::sym_size.int", {y}, {8, "s0"});
    const ValueId b = builder.node("aten::mul.Scalar", {a, size}, {{4, {}}});
    builder.output(b);
    const CutProgram result = cut(builder.program(), {builder.maker(a) + 1});
    EXPECT_THAT(result.stages[1].receives, testing::UnorderedElementsAre(size, a));
    EXPECT_THAT(result.stages[1].nodes, ElementsAre(builder.maker(b)));
    EXPECT_THAT(result.stages[0].nodes, testing::Contains(builder.maker(size))) << "it must make what it sends";
    for (const CutEdge& edge : result.edges) EXPECT_EQ(edge.from, 0);
  }
}

/// A size of a constant is read in the stage that needs it; the constant itself depends on a size.
TEST(Cut, NumbersThatConstantsWantAreFoundToo) {
  ProgramBuilder builder;
  const ValueId x = builder.user("x", kBatch);
  const ValueId size = builder.number("aten::sym_size.int", {x}, {8, "s0"});
  const ValueId positions = builder.node("aten::arange", {size}, {{8, "s0"}});
  const ValueId length = builder.number("aten::sym_size.int", {positions}, {8, {}});
  const ValueId a = builder.node("aten::relu", {x}, kBatch);
  const ValueId b = builder.node("aten::mul.Scalar", {a, length}, kBatch);
  builder.output(b);
  const CutProgram result = cut(builder.program(), {builder.maker(b)});
  EXPECT_THAT(result.stages[1].nodes, ElementsAre(builder.maker(positions), builder.maker(length), builder.maker(b)));
  ASSERT_EQ(result.stages[1].sizes.size(), 1U);
  EXPECT_EQ(result.stages[1].sizes[0].number, size);
}

TEST(Cut, AParameterInSeveralStagesIsATie) {
  Chain chain;
  chain.output(chain.node("aten::mul.Tensor", {chain.c, chain.wa}, kBatch));
  const CutProgram result = cut(chain.program(), {1, 2});
  ASSERT_EQ(result.ties.size(), 1U);
  EXPECT_EQ(result.ties[0].input, 1);
  EXPECT_THAT(result.ties[0].stages, ElementsAre(0, 2));
}

TEST(Cut, UnusedWeightsGoToTheirNeighbours) {
  Chain chain;
  chain.parameter("b.unused");
  const CutProgram result = cut(chain.program(), {1, 2});
  EXPECT_THAT(result.stages[1].loads, ElementsAre(2, 4));
}

TEST(Cut, AStageThatChangesItsInputGetsACopy) {
  ProgramBuilder builder;
  const ValueId x = builder.user("x", kBatch);
  const ValueId a = builder.node("aten::relu", {x}, kBatch);
  const ValueId b = builder.node("aten::mul_.Tensor", {a}, kBatch);
  builder.output(b);
  EXPECT_THAT(cut(builder.program(), {1}).stages[1].copies, ElementsAre(a));
  EXPECT_THAT(cut(builder.program(), {}).stages[0].copies, IsEmpty());
}

TEST(Cut, TwoChangesOfTheSameMemoryStayTogether) {
  ProgramBuilder builder;
  const ValueId x = builder.user("x", kBatch);
  const ValueId a = builder.node("aten::relu", {x}, kBatch);
  const ValueId view = builder.node("aten::view", {a}, kBatch);
  const ValueId b = builder.in("early").node("aten::mul_.Tensor", {view}, kBatch);
  const ValueId c = builder.in("late").node("aten::add_.Tensor", {a}, kBatch);
  builder.output(builder.node("aten::add.Tensor", {b, c}, kBatch));
  EXPECT_THAT(reason_against(builder.program(), {builder.maker(c)}),
              AllOf(HasSubstr("node 'mul__2' (aten::mul_.Tensor in early)"),
                    HasSubstr("node 'add__3' (aten::add_.Tensor in late)"), HasSubstr("same memory"),
                    HasSubstr("cut elsewhere")));
  EXPECT_EQ(reason_against(builder.program(), {builder.maker(view)}), "");
}

TEST(Cut, SharedMemoryThatIsChangedIsNotReceivedTwice) {
  ProgramBuilder builder;
  const ValueId x = builder.user("x", kBatch);
  const ValueId a = builder.node("aten::relu", {x}, kBatch);
  const ValueId view = builder.node("aten::view", {a}, kBatch);
  const ValueId b = builder.node("aten::mul_.Tensor", {view}, kBatch);
  builder.output(builder.node("aten::add.Tensor", {b, a}, kBatch));
  EXPECT_THAT(reason_against(builder.program(), {builder.maker(b)}),
              AllOf(HasSubstr("node 'relu_0'"), HasSubstr("node 'view_1'"), HasSubstr("copies of both")));
}

TEST(Cut, ABufferIsNotUsedAwayFromItsChange) {
  ProgramBuilder builder;
  const ValueId x = builder.user("x", kBatch);
  const ValueId mean = builder.buffer("mean");
  const ValueId a = builder.node("aten::mul.Tensor", {x, mean}, kBatch);
  const ValueId b = builder.node("aten::mul_.Tensor", {mean});
  builder.output(builder.node("aten::add.Tensor", {a, b}, kBatch));
  EXPECT_THAT(reason_against(builder.program(), {1}),
              AllOf(HasSubstr("stage 0 would use the input 'mean' without the change"), HasSubstr("'mul__1'")));
}

TEST(Cut, UpdatesOfOneBufferInTwoStagesAreRefused) {
  Chain chain;
  const ValueId buffer = chain.buffer("counter");
  chain.update(buffer, chain.a).update(buffer, chain.c);
  EXPECT_THAT(reason_against(chain.program(), {1}), HasSubstr("the update of 'counter'"));
}

TEST(Cut, EmptyStagesAreRefused) {
  Chain chain;
  Program& program = chain.program();
  EXPECT_THAT(reason_against(program, {0}), AllOf(HasSubstr("stage 0 would be empty"), HasSubstr("before node 'mul")));
  EXPECT_THAT(reason_against(program, {3}), AllOf(HasSubstr("stage 1 would be empty"), HasSubstr("at the end")));
  EXPECT_THAT(reason_against(program, {1, 1}),
              HasSubstr("stage 1 would be empty: there is nothing to compute between"));
  EXPECT_THAT(reason_against(program, {4}), HasSubstr("only nodes 0 to 2"));
  EXPECT_THAT(reason_against(program, {-1}), HasSubstr("only nodes 0 to 2"));
  EXPECT_THAT(reason_against(program, {2, 1}), HasSubstr("in the order of the program"));
}

TEST(Cut, AStageThatTakesNothingIsRefused) {
  ProgramBuilder builder;
  const ValueId x = builder.user("x", kBatch);
  const ValueId weight = builder.parameter("weight");
  const ValueId a = builder.node("aten::relu", {x}, kBatch);
  const ValueId normal = builder.node("aten::relu", {weight});
  const ValueId b = builder.node("aten::mul.Tensor", {a, normal}, kBatch);
  builder.output(b);
  EXPECT_THAT(reason_against(builder.program(), {builder.maker(normal), builder.maker(b)}),
              AllOf(HasSubstr("stage 1, from node 'relu_1'"), HasSubstr("take nothing")));
}

/// Deep chains of constants and sizes must not use up the call stack.
TEST(Cut, LongChainsOfConstants) {
  ProgramBuilder builder;
  const ValueId x = builder.user("x", kBatch);
  ValueId constant = builder.buffer("table");
  ValueId number = builder.number("aten::sym_size.int", {x}, {8, "s0"});
  for (int i = 0; i < 100000; ++i) {
    constant = builder.node("aten::cos", {constant});
    number = builder.number("_operator.add", {number}, {8, {}});
  }
  const ValueId a = builder.node("aten::relu", {x}, kBatch);
  builder.output(builder.node("aten::mul.Tensor", {a, constant, number}, kBatch));
  const auto last = static_cast<int>(builder.program().nodes.size()) - 1;
  EXPECT_EQ(cut(builder.program(), {last}).stages[1].nodes.size(), 200001U);
  EXPECT_EQ(balanced_places(builder.program(), 2).size(), 1U);
}

}  // namespace
}  // namespace stagecraft::graph
