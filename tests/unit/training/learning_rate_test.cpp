// Learning rates: their values, what they do to the groups of an optimizer, and what a checkpoint keeps of them.

#include "stagecraft/training/learning_rate.h"

#include "unit/checkpoint/checkpoint_testing.h"

namespace stagecraft {
namespace {

using namespace checkpoint_testing;
using testing::AllOf;
using testing::DoubleEq;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<double> first_rates(const LearningRate& rate, std::int64_t count) {
  std::vector<double> rates;
  for (std::int64_t update = 0; update < count; ++update) rates.push_back(rate.at(update));
  return rates;
}

TEST(LearningRate, HasTheValuesOfItsFormulas) {
  EXPECT_THAT(first_rates(LearningRate::constant({.base = 0.5}), 3), ElementsAre(0.5, 0.5, 0.5));
  EXPECT_THAT(first_rates(LearningRate::constant({.base = 0.8, .warm_up = 3}), 5),
              ElementsAre(DoubleEq(0.2), DoubleEq(0.4), DoubleEq(0.6), 0.8, 0.8));
  EXPECT_THAT(first_rates(LearningRate::linear({.base = 1, .warm_up = 1, .updates = 5, .last = 0.2}), 7),
              ElementsAre(0.5, 1.0, DoubleEq(0.8), DoubleEq(0.6), DoubleEq(0.4), 0.2, 0.2));
  EXPECT_THAT(first_rates(LearningRate::cosine({.base = 1, .updates = 4}), 6),
              ElementsAre(1.0, DoubleEq((1 + std::sqrt(0.5)) / 2), DoubleEq(0.5), DoubleEq((1 - std::sqrt(0.5)) / 2),
                          0.0, 0.0));
}

TEST(LearningRate, RefusesWhatCannotBe) {
  const auto message = [](LearningRateOptions options) { return message_of([&] { LearningRate::linear(options); }); };
  EXPECT_THAT(message({.updates = 3}), HasSubstr("base is 0: give a positive number"));
  EXPECT_THAT(message({.base = std::nan(""), .updates = 3}), HasSubstr("base is nan"));
  EXPECT_THAT(message({.base = 1, .warm_up = -1, .updates = 3}), HasSubstr("warm_up is -1"));
  EXPECT_THAT(message({.base = 1, .warm_up = 3, .updates = 3}), HasSubstr("updates are 3, of which 3 are warm-up"));
  EXPECT_THAT(message({.base = 1, .updates = 3, .last = 2}), HasSubstr("last is 2: give a number from 0 to base"));
  EXPECT_THAT(message_of([] { LearningRate::constant({.base = 1, .updates = 3}); }),
              HasSubstr("take linear or cosine"));
  EXPECT_THAT(message_of([] { (void)LearningRate::constant({.base = 1}).at(-1); }),
              HasSubstr("counted from 0, got -1"));
}

TEST(LearningRate, RefusesRatesThatItsBaseDoesNotExplain) {
  torch::optim::SGD optimizer(std::vector<at::Tensor>{at::ones({1})}, torch::optim::SGDOptions(0.4));
  EXPECT_THAT(message_of([&] { LearningRate::constant({.base = 0.1}).apply(optimizer, 0); }),
              HasSubstr("base is 0.1, but the groups of the optimizer have the rates 0.4"));
  LearningRate first = LearningRate::constant({.base = 0.4, .warm_up = 9});
  first.apply(optimizer, 4);
  LearningRate second = LearningRate::constant({.base = 0.4, .warm_up = 9});
  EXPECT_THAT(message_of([&] { second.apply(optimizer, 5); }), HasSubstr("have the rates 0.2"));
  first.apply(optimizer, 5);
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.4 * (6.0 / 10));
}

TEST(LearningRate, GroupsKeepTheirFactors) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{at::ones({1})}, std::make_unique<torch::optim::SGDOptions>(0.4));
  groups.emplace_back(std::vector<at::Tensor>{}, std::make_unique<torch::optim::SGDOptions>(0.1));
  torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(0.4));
  const auto rates = [&] {
    return std::pair(optimizer.param_groups()[0].options().get_lr(), optimizer.param_groups()[1].options().get_lr());
  };
  LearningRate rate = LearningRate::linear({.base = 0.4, .updates = 4});
  rate.apply(optimizer, 0);
  EXPECT_EQ(rates(), std::pair(0.4, 0.1));
  rate.apply(optimizer, 4);
  EXPECT_EQ(rates(), std::pair(0.0, 0.0));
  rate.apply(optimizer, 2);
  EXPECT_EQ(rates(), std::pair(0.2, 0.05));
  optimizer.param_groups()[1].options().set_lr(7);
  EXPECT_THAT(
      message_of([&] { rate.apply(optimizer, 3); }),
      AllOf(HasSubstr("the learning rate of group 1 was set to 0.05, and is 7 now"), HasSubstr("one LearningRate")));
  optimizer.add_param_group(groups[1]);
  EXPECT_THAT(message_of([&] { rate.apply(optimizer, 3); }), HasSubstr("had 2 groups"));
}

TEST(LearningRate, IsComparedWithTheSavedOne) {
  const ScratchFolder folder;
  const Layout layout;
  Models models(layout, 0);
  Thrown other, none_here, none_there;
  run_on(layout, [&](World& world) {
    const std::string path = shared(world, folder.path("with"));
    const std::string without = shared(world, folder.path("without"));
    Pipeline pipeline = models.pipeline(world);
    torch::optim::SGD optimizer(pipeline.parameters(), 0.1);
    const LearningRate saved = LearningRate::cosine({.base = 0.1, .warm_up = 2, .updates = 30, .last = 1.0 / 30});
    const LearningRate longer = LearningRate::cosine({.base = 0.1, .warm_up = 2, .updates = 31});
    EXPECT_THAT(message_of([&] {
                  save_checkpoint(world, pipeline, path,
                                  {.learning_rate = world.world_rank().value == 0 ? &saved : &longer});
                }),
                HasSubstr("give all ranks the same one"));
    save_checkpoint(world, pipeline, path, {.optimizer = &optimizer, .step = 7, .learning_rate = &longer});
    save_checkpoint(world, pipeline, without, {.optimizer = &optimizer});
    EXPECT_EQ(load_checkpoint(world, pipeline, path, {.optimizer = &optimizer, .learning_rate = &longer}), 7);
    EXPECT_EQ(load_checkpoint(world, pipeline, path), 7) << "weights alone";
    other.expect(world,
                 [&] { load_checkpoint(world, pipeline, path, {.optimizer = &optimizer, .learning_rate = &saved}); });
    none_here.expect(world, [&] { load_checkpoint(world, pipeline, path, {.optimizer = &optimizer}); });
    none_there.expect(
        world, [&] { load_checkpoint(world, pipeline, without, {.optimizer = &optimizer, .learning_rate = &saved}); });
    EXPECT_EQ(load_checkpoint(world, pipeline, path,
                              {.optimizer = &optimizer, .learning_rate = &saved, .other_learning_rate = true}),
              7);
  });
  EXPECT_THAT(other.messages(),
              Each(AllOf(HasSubstr("its learning rate is 'cosine: base 0.1, warm-up 2, updates 31, last 0'"),
                         HasSubstr("that of this run is 'cosine: base 0.1, warm-up 2, updates 30, last 0.0333"),
                         HasSubstr("or set other_learning_rate"))));
  EXPECT_THAT(none_here.messages(), Each(HasSubstr("that of this run is none")));
  EXPECT_THAT(none_there.messages(), Each(AllOf(HasSubstr("its learning rate is none"), Not(HasSubstr("unexpected")))));
}

}  // namespace
}  // namespace stagecraft
