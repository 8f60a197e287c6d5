#include "stagecraft/sim/cost_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/core/error.h"
#include "support/message_of.h"

namespace stagecraft {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kShort =
    R"({"forward": 18.5, "backward_input": 18.1, "backward_weight": 9.3, "latency": 0.6, "activation_memory": 1.0,
        "weight_gradient_memory": 0.6})";

std::string problems(const char* json) {
  return message_of([&] { parse_costs(json); });
}

TEST(CostFile, ShortForm) {
  const Costs costs = parse_costs(kShort);
  ASSERT_EQ(costs.stages.size(), 1U);
  EXPECT_DOUBLE_EQ(costs.stages[0].backward, 18.1 + 9.3) << "the sum, unless given";
  EXPECT_DOUBLE_EQ(costs.link.latency, 0.6);
  EXPECT_DOUBLE_EQ(costs.stages[0].weight_gradient_memory, 0.6);
}

TEST(CostFile, ListsAreByStage) {
  const Costs costs =
      parse_costs(R"({"forward": [1, 2], "backward_input": 3, "backward_weight": [4, 5], "backward": 6})");
  ASSERT_EQ(costs.stages.size(), 2U);
  EXPECT_EQ(costs.of(StageId(1)).forward, 2);
  EXPECT_EQ(costs.of(StageId(1)).backward_input, 3);
  EXPECT_EQ(costs.of(StageId(1)).backward, 6);
  EXPECT_EQ(costs.of(StageId(1)).weight_gradient_memory, 1) << "all of the activation, unless given";
}

TEST(CostFile, TheLongFormReadsBack) {
  const Costs costs = parse_costs(example_costs());
  EXPECT_EQ(costs.stages.size(), 1U) << "for any number of stages";
  EXPECT_DOUBLE_EQ(costs.between(RankId(0), RankId(1)).bandwidth, 1e7);
  EXPECT_DOUBLE_EQ(costs.between(RankId(1), RankId(0)).bandwidth, 2e7);
  EXPECT_DOUBLE_EQ(costs.slowdown(RankId(7)), 1.0);
  EXPECT_NO_THROW(require_fit(costs, 2, 2));
  EXPECT_NO_THROW(require_fit(costs, 16, 8));
  EXPECT_EQ(costs_to_json(costs), example_costs());
}

TEST(CostFile, NamesEveryProblemAtOnce) {
  EXPECT_THAT(problems(R"({"forward": -1, "backward_weight": "fast", "latency": 1e999, "speed": 3})"),
              HasSubstr("finite"));
  const std::string text = problems(R"({"forward": [1, -2], "backward_weight": "fast", "bandwidth": 0, "speed": 3,
                                        "activation_memory": [1, 2, 3], "overlap_communication": 1})");
  EXPECT_THAT(text, AllOf(HasSubstr("forward[1]: got -2"), HasSubstr("backward_input: is missing"),
                          HasSubstr("backward_weight: got \"fast\""), HasSubstr("bandwidth: got 0"),
                          HasSubstr("speed: unknown key"), HasSubstr("activation_memory: has 3 entries"),
                          HasSubstr("overlap_communication")));
}

TEST(CostFile, NamesTheStageAndTheLink) {
  const std::string text =
      problems(R"({"stages": [{"forward": 1, "backward_input": 1, "backward_weight": 1}, {"forward":
    null, "speed": 1, "backward_input": 1}], "links": [{"from": 0, "to": -1}, 7], "rank_slowdown": [1, 0]})");
  EXPECT_THAT(text, AllOf(HasSubstr("stages[1].forward: got null"), HasSubstr("stages[1].speed: unknown"),
                          HasSubstr("stages[1].backward_weight: is missing"), HasSubstr("links[0].to: got -1"),
                          HasSubstr("links[1]: got 7"), HasSubstr("rank_slowdown[1]: got 0")));
  EXPECT_THAT(text, Not(HasSubstr("stages[0]")));
}

TEST(CostFile, LayersMayRepeat) {
  const CostFile file = parse_cost_file(R"({"layers": [
    {"name": "embedding", "forward": 1, "backward_input": 1, "backward_weight": 1},
    {"name": "block", "repeat": 3, "forward": 2, "backward_input": 2, "backward_weight": 2}], "latency": 0.5})");
  ASSERT_EQ(file.layers.size(), 4U);
  EXPECT_EQ(file.layers[3].name, "block");
  EXPECT_EQ(file.layers[3].costs.backward, 4);
  EXPECT_EQ(file.costs.link.latency, 0.5);
  EXPECT_THAT(problems(R"({"layers": [{"forward": 1, "backward_input": 1, "backward_weight": 1}]})"),
              HasSubstr("stagecraft plan"));
  EXPECT_THAT(problems(R"({"layers": [{"forward": -1, "backward_input": 1, "repeat": 0}], "forward": 2})"),
              AllOf(HasSubstr("layers[0].forward: got -1"), HasSubstr("layers[0].backward_weight: is missing"),
                    HasSubstr("layers[0].repeat: got 0"), HasSubstr("forward: stands beside")));
}

TEST(CostFile, ParametersReplicasAndRecompute) {
  const Costs costs = parse_costs(R"({"forward": 1, "backward_input": 1, "backward_weight": 1,
      "activation_memory": [4, 5], "parameter_memory": 2, "master_memory": 4, "gradient_memory": 4, "optimizer_memory": 8,
      "input_memory": 1, "recompute": [false, true], "replicas": 4, "shard": "gradients", "replica_latency": 0.5,
      "replica_bandwidth": 10, "memory_unit": "bytes"})");
  ASSERT_EQ(costs.stages.size(), 2U);
  EXPECT_FALSE(costs.stages[0].recompute);
  EXPECT_TRUE(costs.stages[1].recompute);
  EXPECT_EQ(costs.stages[1].master_memory, 4);
  EXPECT_EQ(costs.replicas, 4);
  EXPECT_EQ(costs.shard, Shard::kGradients);
  EXPECT_EQ(costs.replica_link.bandwidth, 10);
  EXPECT_TRUE(costs.memory_in_bytes);
  EXPECT_TRUE(costs.has_more_than_activations());
  EXPECT_EQ(costs_to_json(parse_costs(costs_to_json(costs))), costs_to_json(costs));
  EXPECT_FALSE(parse_costs(kShort).has_more_than_activations());
  EXPECT_FALSE(parse_costs(example_costs()).has_more_than_activations());
  const Costs large = parse_costs(example_costs_in_bytes());
  EXPECT_EQ(costs_to_json(large), example_costs_in_bytes());
  EXPECT_TRUE(large.memory_in_bytes);
}

TEST(CostFile, RefusesMemoryInTwoUnits) {
  EXPECT_THAT(problems(R"({"forward": 1, "backward_input": 1, "backward_weight": 1, "parameter_memory": 1e9})"),
              HasSubstr("activation_memory: is missing"));
  EXPECT_THAT(problems(R"({"forward": 1, "backward_input": 1, "backward_weight": 1, "memory_unit": "bytes"})"),
              HasSubstr("activation_memory: is missing"));
  EXPECT_THAT(
      problems(R"({"stages": [{"forward": 1, "backward_input": 1, "backward_weight": 1, "optimizer_memory": 1,
                           "recompute": true}]})"),
      AllOf(HasSubstr("stages[0].activation_memory: is missing"), HasSubstr("stages[0].input_memory: is missing")));
  EXPECT_THAT(problems(R"({"forward": 1, "backward_input": 1, "backward_weight": 1, "recompute": 1, "replicas": 0,
                           "shard": "all", "memory_unit": "GiB", "replica_bandwidth": 0})"),
              AllOf(HasSubstr("recompute: got 1, expected true or false"), HasSubstr("replicas: got 0"),
                    HasSubstr("shard: got \"all\", expected none, optimizer, gradients or parameters"),
                    HasSubstr("memory_unit: got \"GiB\""), HasSubstr("replica_bandwidth: got 0")));
  EXPECT_THAT(problems(R"({"forward": 1, "backward_input": 1, "backward_weight": 1, "recompute": [true, false],
                           "input_memory": [1, 2, 3], "activation_memory": 1})"),
              HasSubstr("recompute: has 2 entries, but input_memory has 3"));
}

TEST(CostFile, RefusesOtherText) {
  EXPECT_THAT(problems("{\n\"forward\": \n,}"), HasSubstr("line 3"));
  EXPECT_THAT(problems("[1]"), HasSubstr("expected an object"));
  EXPECT_THAT(problems(""), HasSubstr("not JSON"));
  EXPECT_THAT(problems(R"({"stages": [], "forward": 1})"),
              AllOf(HasSubstr("forward: stands beside"), HasSubstr("stages: got []")));
}

}  // namespace
}  // namespace stagecraft
