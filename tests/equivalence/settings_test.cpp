// Everything around a step, in every combination: sharding, replicas, recompute, accumulation, clipping and the weights
// of losses give what one device computes: in float32 bit for bit where sums have the same order, and to 1e-6 where
// they have not; these also in float64 to the last digits, so that a small error is not taken for rounding.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <mutex>

#include "models.h"
#include "stagecraft/data_parallel/masters.h"
#include "stagecraft/stagecraft.h"
#include "support/every_setting.h"
#include "support/processes.h"

namespace stagecraft::equivalence {
namespace {

constexpr std::int64_t kClasses = 6;
constexpr int kLinears = 12;
constexpr int kUpdates = 3;
constexpr double kMostOfNorm = 0.05;

enum class LossWeights { kEqual, kRagged, kOneIgnored };

struct TrainingSetting {
  std::string schedule;
  int ranks = 2;
  int replicas = 1;
  Shard shard = Shard::kNone;
  int recompute = 0;  ///< 0: nothing, 1: stages, 2: every two layers.
  int accumulate = 1;
  bool clips = false;
  LossWeights weights = LossWeights::kEqual;

  [[nodiscard]] int microbatches() const { return 2 * ranks; }
  [[nodiscard]] std::int64_t rows() const {
    return static_cast<std::int64_t>(replicas) * microbatches() * 2 + (weights == LossWeights::kRagged ? 1 : 0);
  }
  [[nodiscard]] bool is_exact() const { return replicas == 1 && !clips; }
  at::ScalarType type = at::kFloat;
  /// Small steps in float32: what differs is the rounding of gradients, not what training makes of it.
  [[nodiscard]] double rate() const { return is_exact() || type == at::kDouble ? 0.5 : 0.05; }
  [[nodiscard]] double tolerance() const { return type == at::kDouble ? 1e-12 : 1e-6; }
  [[nodiscard]] std::string text() const {
    return schedule + " on " + std::to_string(ranks) + " ranks x " + std::to_string(replicas) + ", shard " +
           std::to_string(static_cast<int>(shard)) + ", recompute " + std::to_string(recompute) + ", accumulate " +
           std::to_string(accumulate) + (clips ? ", clipped" : "") + ", weights " +
           std::to_string(static_cast<int>(weights));
  }
};

/// All of them; under mpirun, those that fit the number of processes.
std::vector<TrainingSetting> training_settings() {
  const std::vector<std::string> schedules = {"1F1B", "InterleavedZeroBubble", "GPipe", "ZBVZeroBubble",
                                              "Interleaved1F1B"};
  std::vector<TrainingSetting> all;
  for (const int replicas : {1, 2, 3}) {
    for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
      if (shard != Shard::kNone && replicas == 1) continue;
      if (processes() > 0 && processes() % replicas != 0) continue;
      for (const int recompute : {0, 1, 2}) {
        for (const int accumulate : {1, 3}) {
          for (const bool clips : {false, true}) {
            for (const LossWeights weights : {LossWeights::kEqual, LossWeights::kRagged, LossWeights::kOneIgnored}) {
              TrainingSetting setting{
                  schedules[all.size() % schedules.size()], 2, replicas, shard, recompute, accumulate, clips, weights};
              if (processes() > 0) setting.ranks = processes() / replicas;
              all.push_back(setting);
            }
          }
        }
      }
    }
  }
  return all;
}

torch::nn::Sequential classifier(const TrainingSetting& setting) {
  torch::nn::Sequential model;
  for (int i = 0; i < kLinears; ++i) {
    model->push_back(torch::nn::Linear(kClasses, kClasses));
    model->push_back(torch::nn::Tanh());
  }
  model->to(device(), setting.type);
  const torch::NoGradGuard no_graph;
  double phase = 0;
  for (at::Tensor& parameter : model->parameters()) {
    phase += 1;
    parameter.copy_((at::arange(parameter.numel()) * 0.9 + phase).sin().view(parameter.sizes()) * 0.6);
  }
  return model;
}

struct TrainingBatch {
  at::Tensor input;
  at::Tensor target;
};
TrainingBatch training_batch(const TrainingSetting& setting, int step) {
  const std::int64_t rows = setting.rows();
  at::Tensor target = (at::arange(rows) * 5 + step) % kClasses;
  if (setting.weights == LossWeights::kOneIgnored) target.narrow(0, 2, 2).fill_(-100);  // the second microbatch
  return {(at::arange(rows * kClasses) * 0.37 + step).sin().view({rows, kClasses}).to(device(), setting.type),
          target.to(device())};
}

struct TrainedWeights {
  std::map<std::string, at::Tensor> weights;
  std::vector<double> losses;
};

torch::optim::SGD make_sgd(const TrainingSetting& setting, const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(setting.rate()).momentum(0.9));
}

/// Microbatch by microbatch; what matters is the order of sums.
TrainedWeights trained_on_one_device(const TrainingSetting& setting) {
  torch::nn::Sequential model = classifier(setting);
  torch::optim::SGD optimizer = make_sgd(setting, model->parameters());
  TrainedWeights trained;
  for (int step = 0; step < kUpdates * setting.accumulate; ++step) {
    const TrainingBatch batch = training_batch(setting, step);
    const double total = (batch.target != -100).sum().item<double>();
    double sum = 0;
    std::int64_t begin = 0;
    for (const std::int64_t share : even_sizes(setting.rows(), setting.replicas)) {
      for (const std::int64_t rows : even_sizes(share, setting.microbatches())) {
        const at::Tensor target = batch.target.narrow(0, begin, rows);
        const at::Tensor output = model->forward(batch.input.narrow(0, begin, rows));
        begin += rows;
        const double weight = (target != -100).sum().item<double>() / total;
        if (weight == 0) continue;
        const at::Tensor loss = at::cross_entropy_loss(output, target);
        loss.backward(at::full_like(loss.detach(), weight));
        sum += weight * loss.item<double>();
      }
    }
    trained.losses.push_back(sum);
    if ((step + 1) % setting.accumulate != 0) continue;
    if (setting.clips) torch::nn::utils::clip_grad_norm_(model->parameters(), kMostOfNorm);
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& parameter : model->named_parameters()) trained.weights[parameter.key()] = parameter.value().detach();
  return trained;
}

PipelineOptions options_of(const TrainingSetting& setting) {
  PipelineOptions options = {
      .schedule = setting.schedule,
      .microbatches = setting.microbatches(),
      .loss = [](const at::Tensor& output, const at::Tensor& target) { return at::cross_entropy_loss(output, target); },
      .broadcast_loss = true,
      .bucket_bytes = 200,
      .shard = setting.shard,
      .accumulate = setting.accumulate};
  if (setting.weights == LossWeights::kOneIgnored) options.loss_weight = counted_targets();
  if (setting.recompute == 1) options.recompute = Recompute::stage();
  if (setting.recompute == 2) options.recompute = Recompute::every(2);
  return options;
}

TrainedWeights trained_on_rank(World& world, const TrainingSetting& setting) {
  Pipeline pipeline(world, classifier(setting), options_of(setting));
  torch::optim::SGD optimizer = make_sgd(setting, pipeline.parameters());
  pipeline.attach(optimizer);
  TrainedWeights trained;
  for (int step = 0; step < kUpdates * setting.accumulate; ++step) {
    const TrainingBatch batch = training_batch(setting, step);
    const StepOptions options = {.target = world.share_of(batch.target)};
    trained.losses.push_back(pipeline.step({world.share_of(batch.input)}, options).loss());
    if ((step + 1) % setting.accumulate != 0) continue;
    if (setting.clips) pipeline.clip_gradient_norm(kMostOfNorm);
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& [name, weight] : pipeline.named_parameters()) {
    trained.weights[name] = pipeline.masters() ? pipeline.masters()->whole_of(weight, weight) : weight.detach();
  }
  return trained;
}

void expect_one_device(const TrainingSetting& setting) {
  SCOPED_TRACE(setting.text());
  at::set_num_threads(1);
  const TrainedWeights expected = trained_on_one_device(setting);
  std::mutex mutex;
  const auto on_rank = [&](World& world) {
    const TrainedWeights got = trained_on_rank(world, setting);
    const std::lock_guard lock(mutex);
    for (std::size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(got.losses[step], expected.losses[step], setting.tolerance() * expected.losses[step])
          << "loss of step " << step;
    }
    for (const auto& [name, weight] : got.weights) {
      const at::Tensor& other = expected.weights.at(name);
      if (setting.is_exact()) {
        EXPECT_TRUE(at::equal(weight, other)) << name;
      } else {
        EXPECT_LE((weight - other).abs().max().item<double>(), setting.tolerance() * other.abs().max().item<double>())
            << name;
      }
    }
  };
  if (processes() > 0) {
    World world(ProcessEnvironment::transport(), device(), kPatience, setting.replicas);
    return on_rank(world);
  }
  run_ranks({.ranks = setting.ranks,
             .replicas = setting.replicas,
             .threads_per_rank = 1,
             .device_type = device().type(),
             .timeout = kPatience},
            on_rank);
}

/// `make test` looks at one of 23: the numbers of choices have no factor of 23, so all of them come up.
TEST(EveryTrainingSetting, EqualsOneDevice) {
  const std::vector<TrainingSetting> all = training_settings();
  for (std::size_t i = 0; i < all.size() && !HasFailure(); i += every_setting() ? 1 : 23) {
    expect_one_device(all[i]);
    if (all[i].is_exact()) continue;
    TrainingSetting precise = all[i];
    precise.type = at::kDouble;
    expect_one_device(precise);
  }
}

}  // namespace
}  // namespace stagecraft::equivalence
