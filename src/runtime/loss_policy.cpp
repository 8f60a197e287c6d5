#include "loss_policy.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numeric>
#include <sstream>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

const at::Tensor& checked(const at::Tensor& loss, StageId stage, const char* what) {
  if (loss.defined() && loss.numel() == 1) return loss;
  std::ostringstream got;
  if (loss.defined()) {
    got << "shape " << loss.sizes();
  } else {
    got << "nothing";
  }
  throw InvalidArgument(std::string("the ") + what + " of stage " + std::to_string(stage.value) +
                        " must be one number, got " + got.str() + ": reduce it with mean() or sum()");
}

std::vector<double> to_vector(const at::Tensor& numbers) {
  const at::Tensor here = numbers.cpu();
  return {here.const_data_ptr<double>(), here.const_data_ptr<double>() + here.numel()};
}

}  // namespace

LossWeight counted_targets(std::int64_t ignored) {
  return [ignored](const Value& target) { return (target.tensor() != ignored).sum().item<double>(); };
}

// --- weights ---

void LossPolicy::begin(const StepInputs& inputs) {
  inputs_ = &inputs;
  weights_.clear();
  total_.reset();
  replica_weight_ = 1;
  losses_.assign(microbatches_, {});
  if (inputs.only_shapes()) return;
  if (place_.has_last && !inputs.targets.empty()) weigh_microbatches();
  if (!inputs.training() && !options_.broadcast_loss) return;
  weigh_replicas();
  if (inputs.training() && place_.others_weigh) share_weights();
}

/// A mean over unequal microbatches is a weighted mean of their means.
void LossPolicy::weigh_microbatches() {
  if (options_.loss_scale == LossScale::kSum) {
    weights_.assign(microbatches_, 1.0);
    return;
  }
  if (options_.loss_weight) {
    for (const Value& target : inputs_->targets) {
      const double weight = options_.loss_weight(target);
      if (!(weight >= 0) || std::isinf(weight)) {
        throw InvalidArgument("loss_weight returned " + std::to_string(weight) + " for microbatch " +
                              std::to_string(weights_.size()) + ": a weight is a number of at least 0");
      }
      weights_.push_back(weight);
    }
  } else {
    weights_.assign(inputs_->loss_rows.begin(), inputs_->loss_rows.end());
  }
  if (weights_.empty()) {
    weights_.assign(microbatches_, 1.0 / static_cast<double>(microbatches_));
    return;
  }
  total_ = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  for (double& weight : weights_) weight = *total_ > 0 ? weight / *total_ : 0;
}

/// A mean over all replicas is a weighted mean of their means. Only the rank with the targets knows the weights.
void LossPolicy::weigh_replicas() {
  const bool has_weights = place_.has_last && (inputs_->training() || !inputs_->targets.empty());
  if (has_weights && world_.replicas() > 1) replica_weight_ = replica_weight();
}

double LossPolicy::replica_weight() const {
  const int replicas = world_.replicas();
  if (options_.loss_scale == LossScale::kSum) return replicas;
  std::ostringstream text;
  text << std::hexfloat << total_.value_or(-1);
  double total = 0;
  bool all_know = true;
  const auto during = world_.peers().during("how much the other replicas count");
  for (const Message& message : world_.peers().all_gather(Message{{}, text.str()})) {
    const double weight = std::strtod(message.header.c_str(), nullptr);
    all_know &= weight >= 0;
    total += weight;
  }
  return all_know && total > 0 ? *total_ * replicas / total : 1;
}

void LossPolicy::share_weights() {
  Message message;
  if (place_.has_last) message.tensors = {at::tensor(weights_, at::kDouble) * replica_weight_};
  const auto during = world_.pipeline().during("the weights of the losses");
  const Message shared = world_.pipeline().broadcast(std::move(message), place_.last.value);
  if (place_.has_last) return;
  weights_ = to_vector(shared.tensors.at(0));
  replica_weight_ = 1;  // the weights received include it
}

// --- losses ---

std::vector<double> LossPolicy::seeds() const {
  std::vector<double> seeds;
  for (const double weight : weights_) seeds.push_back(weight * replica_weight_ * scale_);
  return seeds;
}

void LossPolicy::begin_capture(const StepInputs& inputs, const at::Tensor& seeds) {
  inputs_ = &inputs;
  seeds_on_device_ = seeds;
  losses_.assign(microbatches_, {});
}

std::vector<at::Tensor> LossPolicy::end_capture(const StepInputs& inputs) {
  inputs_ = &inputs;
  seeds_on_device_.reset();
  return std::exchange(losses_, std::vector<at::Tensor>(microbatches_));
}

at::Tensor LossPolicy::seed_for(const at::Tensor& loss, MicrobatchId microbatch) {
  if (seeds_on_device_.defined()) {
    return seeds_on_device_.select(0, microbatch.value)
        .to(loss.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
        .view(loss.sizes());
  }
  // Each has memory of its own: that of a parameter which is added to the loss may become its gradient.
  return at::full_like(loss.detach(), weights_[microbatch.index()] * replica_weight_ * scale_);
}

/// A microbatch of weight 0 gives zero gradients, as ignored rows do on one device. Its loss function is not called: it
/// might return a mean over nothing, NaN.
void LossPolicy::add_loss(StageId stage, MicrobatchId microbatch, const Value& output, std::vector<at::Tensor>& roots,
                          std::vector<at::Tensor>& seeds) {
  at::Tensor& kept = losses_[microbatch.index()];
  if (weights_[microbatch.index()] == 0) {
    output.for_each_tensor([&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      if (!kept.defined()) kept = at::zeros({}, tensor.options().requires_grad(false));
      if (!inputs_->training() || !tensor.requires_grad()) return;
      roots.push_back(tensor);
      seeds.push_back(at::zeros_like(tensor.detach()));
    });
    return;
  }
  const at::Tensor loss = options_.loss(output, inputs_->targets[microbatch.index()], *inputs_->loss_keywords);
  kept = checked(loss, stage, "loss").detach();
  if (seeds_on_device_.defined()) kept = kept.clone();  // that of the loss function may be kept there
  if (!inputs_->training()) return;
  if (!loss.requires_grad()) {
    throw InvalidArgument("the loss of stage " + std::to_string(stage.value) +
                          " does not depend on any parameter that is trained: make it from the output, without "
                          "detach() or item(), and do not freeze all parameters");
  }
  roots.push_back(loss);
  seeds.push_back(seed_for(loss, microbatch));
}

void LossPolicy::add_auxiliary_loss(StageId stage, MicrobatchId microbatch, const at::Tensor& loss,
                                    std::vector<at::Tensor>& roots, std::vector<at::Tensor>& seeds) {
  roots.push_back(checked(loss, stage, "auxiliary loss"));
  seeds.push_back(seed_for(loss, microbatch));
}

// --- results ---

void LossPolicy::end(StepResult& result) {
  if (has_losses()) {
    result.losses = std::move(losses_);
    result.weights = weights_;
  }
  if (options_.broadcast_loss) share(result);
}

/// Gives all ranks the losses of all replicas.
void LossPolicy::share(StepResult& result) {
  Message own;
  if (result.has_loss()) {
    const double of_all = replica_weight_ / world_.replicas();
    own.tensors = {at::stack(result.losses), at::tensor(result.weights, at::kDouble) * of_all};
  }
  if (place_.has_last && world_.replicas() > 1) own = of_all_replicas(std::move(own));
  const auto during = world_.pipeline().during("the losses");
  const Message shared = world_.pipeline().broadcast(std::move(own), place_.last.value);
  if (shared.tensors.empty()) return;
  result.losses = shared.tensors[0].unbind();
  result.weights = to_vector(shared.tensors[1]);
}

Message LossPolicy::of_all_replicas(Message own) const {
  std::vector<at::Tensor> losses;
  std::vector<at::Tensor> weights;
  const auto during = world_.peers().during("the losses of the other replicas");
  for (const Message& message : world_.peers().all_gather(std::move(own))) {
    if (message.tensors.empty()) continue;
    losses.push_back(message.tensors[0]);
    weights.push_back(message.tensors[1].cpu());
  }
  if (losses.empty()) return {};
  return {{at::cat(losses), at::cat(weights)}, ""};
}

}  // namespace stagecraft
