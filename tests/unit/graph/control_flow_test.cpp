#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/graph/cut.h"
#include "stagecraft/graph/operators.h"

namespace stagecraft::graph {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

/// A program around one node of control flow, made by hand.
struct Around {
  Program program;

  Around() {
    program.modules.emplace_back();
    program.contexts.emplace_back();
  }
  ValueId value(const std::string& name, std::vector<Size> sizes = {{4, {}}, {2, {}}}) {
    ValueInfo info;
    info.name = name;
    info.tensor = {ElementType::kFloat, std::move(sizes)};
    program.values.push_back(info);
    return static_cast<ValueId>(program.values.size()) - 1;
  }
  ValueId input(const std::string& name, Input::Kind kind) {
    const ValueId own = value(name);
    program.inputs.push_back({.kind = kind, .value = own, .name = name});
    return own;
  }
  static Node node(const std::string& target, const std::vector<ValueId>& used, ValueId made) {
    Node own;
    own.name = target;
    own.target = target;
    for (const ValueId value : used) own.arguments.push_back({value == used.front() ? "self" : "other", Use{value}});
    own.results = {{false, {made}}};
    return own;
  }
};

/// cond(predicate, body, body, operand): both branches have the nodes of `make`.
struct Branch : Around {
  ValueId predicate = value("predicate", {});
  ValueId x = value("x");
  ValueId made = value("made");
  Node cond;

  Branch(std::vector<Node> yes, Argument output, std::vector<Node> no = {}) {
    cond.name = "cond";
    cond.target = "higher_order::cond";
    cond.arguments = {{"predicate", Use{predicate}}, {"other 1", Use{x}}};
    cond.results = {{false, {made}}};
    cond.bodies.resize(2);
    cond.bodies[0] = {{kNoValue}, std::move(yes), {output}};
    cond.bodies[1] = {{kNoValue}, std::move(no), {std::move(output)}};
  }
};

TEST(ControlFlow, UsesItsOperands) { EXPECT_THAT(Branch({}, Use{1}).cond.uses(), ElementsAre(0, 1)); }

TEST(ControlFlow, ABranchThatComputesSharesNothing) {
  const Branch branch({Around::node("aten::sin", {1}, 3)}, Use{3});
  const Effects effects = effects_of(branch.cond);
  EXPECT_THAT(effects.changes, IsEmpty());
  EXPECT_THAT(effects.shares, IsEmpty());
  EXPECT_FALSE(effects.random);
}

TEST(ControlFlow, ABranchThatReturnsAViewSharesItsOperand) {
  const Branch branch({Around::node("aten::view", {1}, 3)}, Use{3});
  EXPECT_THAT(effects_of(branch.cond).shares, ElementsAre(1));
}

TEST(ControlFlow, AChangeInEitherBranchIsAChange) {
  const std::vector<Node> change = {Around::node("aten::view", {1}, 3), Around::node("aten::mul_.Tensor", {3}, 4)};
  EXPECT_THAT(effects_of(Branch(change, Use{0}).cond).changes, ElementsAre(1));
  EXPECT_THAT(effects_of(Branch({}, Use{0}, change).cond).changes, ElementsAre(1));
}

TEST(ControlFlow, AChangeOfItsOwnIsNobodysBusiness) {
  const Branch branch({Around::node("aten::sin", {1}, 3), Around::node("aten::mul_.Tensor", {3}, 4)}, Use{4});
  EXPECT_THAT(effects_of(branch.cond).changes, IsEmpty());
}

TEST(ControlFlow, IsRandomIfABranchIs) {
  EXPECT_TRUE(effects_of(Branch({}, Use{1}, {Around::node("aten::rand_like", {1}, 3)}).cond).random);
}

TEST(ControlFlow, EffectsOfNestedBodiesCount) {
  Branch outer({}, Use{0});
  Branch inner({Around::node("aten::mul_.Tensor", {1}, 3)}, Use{0});
  outer.cond.bodies[1].nodes = {inner.cond};
  EXPECT_THAT(effects_of(outer.cond).changes, ElementsAre(1));
}

/// while_loop over two carried values, which become `outputs` of the formals `a` and `b`.
struct Loop : Around {
  ValueId x = value("x");
  ValueId y = value("y");
  ValueId a = value("a");
  ValueId b = value("b");
  ValueId first = value("first");
  ValueId second = value("second");
  ValueId inner = value("inner");
  Node loop;

  Loop(std::vector<Node> nodes, std::vector<Argument> outputs) {
    loop.name = "loop";
    loop.target = "higher_order::while_loop";
    loop.arguments = {{"carried 0", Use{x}}, {"carried 1", Use{y}}};
    loop.carried = 2;
    loop.results = {{false, {first}}, {false, {second}}};
    loop.bodies.resize(2);
    loop.bodies[0] = {{kNoValue, kNoValue}, {}, {true}};
    loop.bodies[1] = {{a, b}, std::move(nodes), std::move(outputs)};
  }
};

TEST(ControlFlow, ALoopThatComputesSharesNothing) {
  const Loop loop({Around::node("aten::sin", {2}, 6)}, {Use{6}, 1.0});
  EXPECT_THAT(effects_of(loop.loop).shares, IsEmpty());
}

TEST(ControlFlow, ALoopThatExchangesItsValuesSharesBoth) {
  const Loop loop({}, {Use{3}, Use{2}});
  EXPECT_THAT(effects_of(loop.loop).shares, UnorderedElementsAre(0, 1));
}

TEST(ControlFlow, AChangeInALaterIterationReachesWhatAnEarlierOneReturned) {
  // The body returns y's slot as the first value, and changes the first value in place: y, in the second iteration.
  const Loop loop({Around::node("aten::mul_.Tensor", {2}, 6)}, {Use{3}, Use{3}});
  EXPECT_THAT(effects_of(loop.loop).changes, UnorderedElementsAre(0, 1));
}

/// scan of one value over one tensor of four rows.
struct Scan : Around {
  ValueId start = input("start", Input::Kind::kUser);
  ValueId rows = input("rows", Input::Kind::kUser);
  ValueId weight = input("weight", Input::Kind::kParameter);
  ValueId state = value("state", {{2, {}}});
  ValueId row = value("row", {{2, {}}});
  ValueId next = value("next", {{2, {}}});
  ValueId last = value("last", {{2, {}}});
  ValueId all = value("all");
  ValueId before = value("before");
  ValueId after = value("after");

  Scan() {
    Node scan;
    scan.name = "scan";
    scan.target = "higher_order::scan";
    scan.arguments = {{"carried 0", Use{start}}, {"sliced 1", Use{before}}, {"other 2", Use{weight}}};
    scan.carried = 1;
    scan.sliced = 1;
    scan.results = {{false, {last}}, {false, {all}}};
    scan.bodies.resize(1);
    scan.bodies[0] = {{state, row, kNoValue}, {node("aten::mul.Tensor", {state, weight}, next)}, {Use{next}, Use{row}}};
    program.nodes = {node("aten::relu", {rows}, before), scan, node("aten::relu", {all}, after)};
    program.outputs = {Use{after}};
  }
};

TEST(ControlFlow, WhatAScanStacksIsNewMemory) { EXPECT_THAT(effects_of(Scan().program.nodes[1]).shares, IsEmpty()); }

TEST(ControlFlow, WorkIsThatOfAllIterations) {
  const Scan scan;
  const Node& node = scan.program.nodes[1];
  EXPECT_EQ(iterations_of(scan.program, node), 4);
  EXPECT_EQ(work_of(scan.program, node), 4 * work_of(scan.program, node.bodies[0].nodes[0]));
  EXPECT_GT(work_of(scan.program, node), 0);
}

TEST(ControlFlow, WorkOfBranchesIsThatOfTheDearer) {
  const Branch branch({Around::node("aten::sin", {1}, 2), Around::node("aten::sin", {1}, 2)}, Use{2},
                      {Around::node("aten::sin", {1}, 2)});
  EXPECT_EQ(work_of(branch.program, branch.cond), 2 * work_of(branch.program, branch.cond.bodies[1].nodes[0]));
}

TEST(ControlFlow, IsCutAroundWithWhatItsBodyUses) {
  const Scan scan;
  const CutProgram result = cut(scan.program, {1});
  ASSERT_EQ(result.stages.size(), 2U);
  EXPECT_THAT(result.stages[1].nodes, ElementsAre(1, 2));
  EXPECT_THAT(result.stages[1].receives, UnorderedElementsAre(scan.start, scan.before));
  EXPECT_THAT(result.stages[1].loads, ElementsAre(2));  // the weight, which only the body uses
  EXPECT_THAT(cut(scan.program, {2}).stages[1].receives, ElementsAre(scan.all));
}

TEST(ControlFlow, EveryNodeIsVisited) {
  std::vector<std::string> names;
  for_each_node(Scan().program.nodes, [&](const Node& node) { names.push_back(node.target); });
  EXPECT_THAT(names, ElementsAre("aten::relu", "higher_order::scan", "aten::mul.Tensor", "aten::relu"));
}

TEST(MissingOperators, AreFoundInBodiesToo) {
  Scan scan;
  scan.program.nodes[1].bodies[0].nodes[0].target = "mylib::step";
  scan.program.nodes[0].target = "transformers::other";
  scan.program.nodes[2].target = "torch._functorch.predispatch._add_batch_dim";
  const std::string text = missing_text(missing_operators(scan.program));
  EXPECT_THAT(text, HasSubstr("mylib::step (1 node): bring them with --load"));
  EXPECT_THAT(text,
              HasSubstr("transformers::other (1 node): load the model with experts_implementation=\"batched_mm\""));
  EXPECT_THAT(text, HasSubstr("_add_batch_dim (1 node): vmap"));
  EXPECT_THAT(missing_operators(Scan().program), IsEmpty());
}

}  // namespace
}  // namespace stagecraft::graph
