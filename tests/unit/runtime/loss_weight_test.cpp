// The loss and gradients of a batch do not depend on how it is cut, also if some targets do not count.

#include "pipeline_testing.h"

namespace stagecraft {
namespace {

using namespace pipeline_testing;

Tensor cross_entropy(const Value& output, const Value& target, const ValueDict&) {
  return at::cross_entropy_loss(output.tensor(), target.tensor());
}

/// Two linear stages, one weight each.
Stage linear_stage(int stage, const Tensor& weight, StageOptions options = {}) {
  return {stage,
          [weight](const StageCall& call) { return Value(at::matmul(call.tensor(0), weight)); },
          NamedTensors{{"weight" + std::to_string(stage), weight}},
          {},
          {},
          std::move(options)};
}
std::vector<Tensor> make_weights() {
  return {numbers({4, 4}, 0).set_requires_grad(true), numbers({4, 3}, 1).set_requires_grad(true)};
}

struct Batch {
  Tensor input = numbers({12, 4}, 2);
  Tensor target;
};

/// The loss and the gradients of the weights, computed by one device on the whole batch.
std::pair<double, std::vector<Tensor>> whole(const Batch& batch, bool with_auxiliary = false) {
  const std::vector<Tensor> weights = make_weights();
  const Tensor hidden = at::matmul(batch.input, weights[0]);
  Tensor loss = at::cross_entropy_loss(at::matmul(hidden, weights[1]), batch.target);
  const double value = loss.item<double>();
  if (with_auxiliary) {  // weighted by the counted targets of each microbatch, here of one row each
    const Tensor counted = (batch.target != -100).to(at::kDouble);
    loss = loss + (hidden.pow(2).mean(1) * counted).sum() / counted.sum();
  }
  loss.backward();
  return {value, {weights[0].grad(), weights[1].grad()}};
}

const std::vector<std::int64_t> kSomeIgnored = {0, -100, 2, 1, -100, -100, -100, -100, 1, 2, 0, -100};
const std::vector<std::int64_t> kMicrobatchIgnored = {-100, -100, -100, 1, 2, 0, -100, -100, -100, -100, -100, 1};

TEST(LossWeight, AnyNumberOfMicrobatchesAndReplicasGivesTheWholeBatch) {
  for (const auto& classes : {kSomeIgnored, kMicrobatchIgnored}) {
    const Batch batch{.target = at::tensor(classes)};
    const auto [loss, gradients] = whole(batch);
    for (const int replicas : {1, 2, 3}) {
      for (const int microbatches : {1, 2, 3, 4}) {
        for (const char* schedule : {"1F1B", "ZB-H1"}) {
          SCOPED_TRACE(std::to_string(replicas) + " replicas, " + std::to_string(microbatches) + " microbatches");
          run_ranks({.ranks = 2, .replicas = replicas, .threads_per_rank = 1, .timeout = kPatience},
                    [&, loss = loss, &gradients = gradients](World& world) {
                      const Tensor weight = make_weights()[world.rank().index()];
                      Pipeline pipeline(world, {linear_stage(world.rank().value, weight)},
                                        {.schedule = schedule,
                                         .microbatches = microbatches,
                                         .loss = cross_entropy,
                                         .loss_weight = counted_targets(),
                                         .broadcast_loss = true});
                      const StepOptions options{.target = world.share_of(batch.target)};
                      EXPECT_NEAR(pipeline.step({world.share_of(batch.input)}, options).loss(), loss, 1e-14);
                      EXPECT_NEAR(pipeline.eval({world.share_of(batch.input)}, options).loss(), loss, 1e-14);
                      expect_close(weight.grad(), gradients[world.rank().index()]);
                    });
        }
      }
    }
  }
}

TEST(LossWeight, AuxiliaryLossesOfStagesWithoutTargetsAreWeightedAlike) {
  const Batch batch{.target = at::tensor(kSomeIgnored)};
  const auto [loss, gradients] = whole(batch, /*with_auxiliary=*/true);
  for (const int replicas : {1, 2}) {
    run_ranks({.ranks = 2, .replicas = replicas, .threads_per_rank = 1, .timeout = kPatience},
              [&, &gradients = gradients](World& world) {
                const Tensor weight = make_weights()[world.rank().index()];
                StageOptions options;
                if (world.is_first()) {
                  options.auxiliary_loss = [](const Value& output) { return output.tensor().pow(2).mean(); };
                }
                Pipeline pipeline(
                    world, {linear_stage(world.rank().value, weight, options)},
                    {.microbatches = 12 / replicas, .loss = cross_entropy, .loss_weight = counted_targets()});
                pipeline.step({world.share_of(batch.input)}, {.target = world.share_of(batch.target)});
                expect_close(weight.grad(), gradients[world.rank().index()]);
              });
  }
}

TEST(LossWeight, ABatchWithoutTargetsThatCountHasNoLossAndGradientsOfZero) {
  run_ranks(quick(2), [](World& world) {
    const Tensor weight = make_weights()[world.rank().index()];
    Pipeline pipeline(
        world, {linear_stage(world.rank().value, weight)},
        {.microbatches = 3, .loss = cross_entropy, .loss_weight = counted_targets(), .broadcast_loss = true});
    const Tensor none = at::full({12}, -100, at::kLong);
    EXPECT_TRUE(std::isnan(pipeline.step({numbers({12, 4}, 2)}, {.target = none}).loss()));
    expect_close(weight.grad(), at::zeros_like(weight));
  });
}

TEST(LossWeight, ThatCannotBeIsRefused) {
  run_ranks(quick(1), [](World& world) {
    const Tensor weight = numbers({4, 3}, 0).set_requires_grad(true);
    EXPECT_THAT(message_of([&] {
                  Pipeline(world, {linear_stage(0, weight)},
                           {.microbatches = 2, .loss_scale = LossScale::kSum, .loss_weight = counted_targets()});
                }),
                HasSubstr("give one of them"));
    for (const double bad : {-1.0, std::nan(""), HUGE_VAL}) {
      Pipeline pipeline(world, {linear_stage(0, weight)},
                        {.microbatches = 2, .loss = cross_entropy, .loss_weight = [=](const Value&) { return bad; }});
      EXPECT_THAT(message_of([&] {
                    pipeline.step({numbers({12, 4}, 2)}, {.target = at::zeros({12}, at::kLong)});
                  }),
                  HasSubstr("for microbatch 0: a weight is a number of at least 0"));
    }
  });
}

}  // namespace
}  // namespace stagecraft
