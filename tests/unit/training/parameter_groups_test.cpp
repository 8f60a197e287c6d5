// Parameters in groups by their names, the same groups on all ranks, and checkpoints of them under other layouts.

#include "stagecraft/training/parameter_groups.h"

#include "unit/checkpoint/checkpoint_testing.h"

namespace stagecraft {
namespace {

using namespace checkpoint_testing;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using torch::optim::AdamWOptions;

std::vector<GroupRule> rules_of_biases() {
  return {{"1.*", AdamWOptions(0.03).weight_decay(0.0)},
          {"*.bias", AdamWOptions(0.02).weight_decay(0.0).amsgrad(true)},
          {"*", AdamWOptions(0.01).weight_decay(0.3)}};
}

TEST(ParameterGroups, TheFirstRuleThatFitsAndNoFrozenOnes) {
  const Layout layout;
  Models models(layout, 0);
  run_on(layout, [&](World& world) {
    Pipeline pipeline = models.pipeline(world);
    NamedTensors parameters = pipeline.named_parameters();
    std::map<const void*, std::string> names;
    for (const auto& [name, parameter] : parameters) names[parameter.unsafeGetTensorImpl()] = name;
    const bool has_last =
        names.contains(parameters.back().second.unsafeGetTensorImpl()) && parameters.back().first.starts_with("7.");
    if (has_last) parameters.back().second.set_requires_grad(false);
    const auto groups = parameter_groups(world, parameters, rules_of_biases());
    ASSERT_EQ(groups.size(), 3U) << "on every rank, also if they are empty there";
    std::size_t members = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (const at::Tensor& parameter : groups[i].params()) {
        ++members;
        const std::string& name = names.at(parameter.unsafeGetTensorImpl());
        const std::size_t expected = name.starts_with("1.") ? 0 : name.ends_with(".bias") ? 1 : 2;
        EXPECT_EQ(i, expected) << name;
        EXPECT_TRUE(parameter.requires_grad());
      }
    }
    EXPECT_EQ(members, parameters.size() - (has_last ? 1 : 0));
    EXPECT_EQ(groups[1].options().get_lr(), 0.02);
    if (has_last) parameters.back().second.set_requires_grad(true);
  });
}

TEST(ParameterGroups, RulesThatDoNotFitAreRefusedOnAllRanks) {
  const Layout layout;
  Models models(layout, 0);
  Thrown nothing, shadowed, without, different;
  run_on(layout, [&](World& world) {
    Pipeline pipeline = models.pipeline(world);
    const NamedTensors parameters = pipeline.named_parameters();
    const AdamWOptions options(0.1);
    nothing.expect(world, [&] { parameter_groups(world, parameters, {{"*.bais", options}, {"*", options}}); });
    shadowed.expect(world, [&] { parameter_groups(world, parameters, {{"*", options}, {"0.*", options}}); });
    without.expect(world, [&] { parameter_groups(world, parameters, {{"*.weight", options}, {"0.*", options}}); });
    if (world.everyone().size() > 1) {
      const std::string own = world.world_rank().value == 1 ? "**" : "*";
      different.expect(world, [&] { parameter_groups(world, parameters, {{own, options}}); });
    }
  });
  EXPECT_THAT(nothing.messages(), Each(HasSubstr("pattern '*.bais' fits no parameter of any rank")));
  EXPECT_THAT(shadowed.messages(), Each(HasSubstr("pattern '0.*' fits only parameters of earlier rules")));
  EXPECT_THAT(without.messages(), Each(AllOf(HasSubstr("no rule fits parameter '1.bias'"), HasSubstr("'7.bias'"),
                                             Not(HasSubstr("'0.bias'")))));
  EXPECT_THAT(different.messages(), Each(HasSubstr("rank 1 has other rules than rank 0")));
}

TEST(ParameterGroups, AreRightUnderAnotherLayout) {
  const ScratchFolder folder;
  std::vector<double> expected;
  for (const Layout& layout : {Layout{.schedule = "1F1B", .ranks = 2}, Layout{.schedule = "GPipe", .ranks = 1},
                               Layout{.schedule = "Interleaved1F1B", .ranks = 2, .stages_per_rank = 2}}) {
    if (processes() * layout.stages_per_rank > 8) continue;
    Models models(layout, expected.empty() ? 0 : 9);
    std::vector<double> losses;
    std::mutex mutex;
    run_on(layout, [&](World& world) {
      const std::string path = shared(world, folder.path("groups.safetensors"));
      Pipeline pipeline = models.pipeline(world);
      torch::optim::AdamW optimizer(parameter_groups(world, pipeline.named_parameters(), rules_of_biases()),
                                    AdamWOptions(0.01));
      LearningRate rate = LearningRate::linear({.base = 0.01, .warm_up = 2, .updates = 9});
      const auto update = [&](int from, int to) {
        std::vector<double> all;
        for (int step = from; step < to; ++step) {
          rate.apply(optimizer, step);
          all.push_back(train(world, pipeline, optimizer, step, step + 1).front());
        }
        return all;
      };
      if (expected.empty()) {
        update(0, 3);
        save_checkpoint(world, pipeline, path, {.optimizer = &optimizer, .step = 3, .learning_rate = &rate});
      } else {
        EXPECT_EQ(load_checkpoint(world, pipeline, path, {.optimizer = &optimizer, .learning_rate = &rate}), 3);
      }
      const std::vector<double> here = update(3, 7);
      const std::lock_guard lock(mutex);
      losses = here;
    });
    if (expected.empty()) expected = losses;
    for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-6) << layout.schedule;
  }
}

}  // namespace
}  // namespace stagecraft
