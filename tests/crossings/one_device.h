#pragma once

#include <torch/torch.h>

#include <map>
#include <memory>

#include "cases.h"

/// A case trained in plain LibTorch, without a pipeline.
namespace stagecraft::crossings {

inline constexpr double kMostNorm = 0.05;  // less than most gradients have

struct Batch {
  at::Tensor input;
  at::Tensor target;
};

inline Batch batch_of(const Case& drawn, int step) {
  const Traits& traits = drawn.traits;
  // A target of the type that the loss function gets.
  const at::ScalarType type = drawn.is_mixed() ? at::kFloat : c10::toRealValueType(traits.type);
  at::Tensor input = numbers({drawn.rows_in(step), kWidth}, step, traits.type);
  if (traits.strided) input = input.t().contiguous().t();
  if (!traits.ignored) {
    return {input, numbers({drawn.rows_in(step), kWidth}, step + 0.5, type)};
  }
  at::Tensor classes = (at::arange(drawn.rows_in(step), device()) * 7 + step) % kWidth;
  classes.masked_fill_(numbers({drawn.rows_in(step)}, step + 3.3, at::kDouble) > 0.2, -100);
  classes[step % drawn.rows_in(step)] = 1;  // one counts at least
  return {input, classes};
}

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Case& drawn, const std::vector<at::Tensor>& all) {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& tensor : all) {
    if (tensor.requires_grad()) trained.push_back(tensor);
  }
  if (drawn.adam && !drawn.traits.is_complex())
    return std::make_unique<torch::optim::AdamW>(trained, torch::optim::AdamWOptions(0.02));
  return std::make_unique<torch::optim::SGD>(trained, torch::optim::SGDOptions(0.1).momentum(0.5));
}

/// What training leaves behind.
struct Outcome {
  std::vector<double> losses;                 ///< By step.
  std::map<std::string, at::Tensor> weights;  ///< On the CPU.
  std::uint64_t replayed = 0;                 ///< Steps that were replayed as graphs.
};

/// Microbatch by microbatch, all layers in a row.
class OneDevice {
 public:
  explicit OneDevice(const Case& drawn)
      : case_(drawn),
        weights_(drawn.traits, 0, drawn.traits.layers),
        masters_(make_masters()),
        optimizer_(make_optimizer(drawn, masters_)) {}

  Outcome train() {
    Outcome outcome;
    int step = 0;
    for (const Layout& layout : case_.layouts) {
      for (int i = 0; i < case_.steps_per_layout(); ++i, ++step) {
        outcome.losses.push_back(add_gradients(layout, step));
        if ((i + 1) % case_.accumulated != 0) continue;
        if (case_.clips) torch::nn::utils::clip_grad_norm_(masters_, kMostNorm);
        optimizer_->step();
        optimizer_->zero_grad();
        renew_weights();
      }
    }
    for (std::size_t i = 0; i < masters_.size(); ++i) {
      outcome.weights[weights_.named()[i].first] = masters_[i].detach().cpu();
    }
    return outcome;
  }

 private:
  /// What the optimizer updates: the weights themselves, or float64 ones that they are made from.
  [[nodiscard]] std::vector<at::Tensor> make_masters() const {
    std::vector<at::Tensor> all;
    for (const auto& [name, weight] : weights_.named()) {
      if (!case_.is_mixed()) {
        all.push_back(weight);
        continue;
      }
      all.push_back(weight.detach().to(at::kDouble).clone().set_requires_grad(weight.requires_grad()));
      weight.set_data(weight.detach().to(at::kFloat));
    }
    return all;
  }

  void renew_weights() {
    for (std::size_t i = 0; i < masters_.size() && case_.is_mixed(); ++i) {
      weights_.named()[i].second.set_data(masters_[i].detach().to(at::kFloat));
    }
  }

  /// Adds the gradients of a microbatch to the masters'.
  void collect_gradients() {
    for (std::size_t i = 0; i < masters_.size() && case_.is_mixed(); ++i) {
      at::Tensor& fresh = weights_.named()[i].second.mutable_grad();
      if (!fresh.defined()) continue;
      at::Tensor& sum = masters_[i].mutable_grad();
      sum = sum.defined() ? sum + fresh : fresh.to(at::kDouble);
      fresh.reset();
    }
  }

  double add_gradients(const Layout& layout, int step) {
    const Traits& traits = case_.traits;
    const Batch batch = batch_of(case_, step);
    const double total = weight_of(traits, batch.target);
    double sum = 0;
    std::int64_t begin = 0;
    int microbatch = 0;
    for (const std::int64_t share : even_sizes(case_.rows_in(step), layout.replicas)) {
      for (const std::int64_t rows : even_sizes(share, layout.microbatches)) {
        const RandomScope random(case_.seed, StageId(0), MicrobatchId(microbatch++), static_cast<std::uint64_t>(step));
        const at::Tensor target = batch.target.narrow(0, begin, rows);
        Between between{batch.input.narrow(0, begin, rows).clone(), {}};
        if (case_.is_mixed()) between.x = between.x.to(at::kFloat);
        begin += rows;
        std::vector<at::Tensor> extra;
        for (int layer = 0; layer < traits.layers; ++layer) {
          between = run_layer(traits, weights_, layer, between, /*training=*/true);
          if (has_extra(traits, layer)) extra.push_back(extra_loss(between.x, weights_));
        }
        const double weight = weight_of(traits, target) / total;
        if (weight == 0) continue;  // gradients are zero, whatever the loss is
        at::Tensor loss = loss_of(traits, between.x, target) * weight;
        sum += loss.item<double>();
        for (const at::Tensor& more : extra) loss = loss + more * weight;
        loss.backward();
        collect_gradients();
      }
    }
    return sum;
  }

  const Case& case_;
  Weights weights_;
  std::vector<at::Tensor> masters_;  // in the order of the weights
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace stagecraft::crossings
