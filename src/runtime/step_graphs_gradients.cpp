// The gradients of captured steps. A graph writes the tensors that it has seen at its capture; whoever keeps one must
// not see it change.

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "step_graphs.h"

namespace stagecraft {
namespace {

constexpr int kPatience = 20;  // milliseconds

}  // namespace

void StepGraphs::regain_gradients() {
  for (Kind& kind : kinds_) {
    if (kind.captured) kind.captured->regain_gradients();
  }
  for (const auto& [gradient, number] : kept_) gradient->regain();
}

bool StepGraphs::is_gradient(const c10::StorageImpl* memory) {
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const at::Tensor& gradient = gradient_of(i);
    if (gradient.has_storage() && memory_of(gradient) == memory) return true;
  }
  return false;
}

GradientPtr StepGraphs::known(const at::Tensor& gradient) const {
  for (const Kind& kind : kinds_) {
    if (!kind.captured) continue;
    for (const GradientPtr& other : kind.captured->after) {
      if (other && other->tensor.is_same(gradient)) return other;
    }
  }
  return nullptr;
}

bool StepGraphs::overwrites(const CapturedStep& captured) {
  const auto are_kept = [&](const CapturedStep& of) {
    for (std::size_t i = 0; i < of.after.size(); ++i) {
      if (!of.after[i] || of.before[i] || of.after[i]->is_ours()) continue;
      const bool is_in_use = of.number != captured.number && of.after[i]->tensor.is_same(gradient_of(i));
      if (!is_in_use) return true;
    }
    return false;
  };
  if (are_kept(captured)) return true;
  // What it adds to is another graph's gradient, and not the parameter's any more: that would be copied there.
  for (std::size_t i = 0; i < captured.before.size(); ++i) {
    const GradientPtr& before = captured.before[i];
    if (before && !before->tensor.is_same(gradient_of(i)) && !before->is_ours()) return true;
  }
  // A later capture may have its gradients in memory that this one has used and freed.
  for (const Kind& kind : kinds_) {
    if (kind.captured && kind.captured->number > captured.number && are_kept(*kind.captured)) return true;
  }
  return std::any_of(kept_.begin(), kept_.end(),
                     [&](const auto& one) { return one.second > captured.number && !one.first->is_ours(); });
}

bool StepGraphs::overwrites_after_all(const CapturedStep& captured) {
  // Another replica, a thread of this process, has told that it has read a gradient, and may be about to let it go.
  for (int i = 0; i < kPatience && parameters_.has_replicas() && overwrites(captured); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return overwrites(captured);
}

std::vector<at::Tensor> StepGraphs::put_in_gradients(const CapturedStep& made) {
  std::vector<at::Tensor> originals;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    originals.push_back(gradient_of(i));
    if (made.before[i]) gradient_of(i) = made.before[i]->tensor;
  }
  return originals;
}

std::string StepGraphs::take_gradients(CapturedStep& made, const std::vector<at::Tensor>& originals) {
  std::string why;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    at::Tensor& gradient = gradient_of(i);
    GradientPtr& after = made.after.emplace_back();
    if (made.before[i]) {
      after = made.before[i];
      if (!gradient.is_same(after->tensor) && why.empty()) why = "a gradient was replaced during the step";
    } else if (gradient.defined()) {
      after = std::make_shared<CapturedGradient>(gradient);
      if (gradient.layout() != at::kStrided && why.empty()) why = "a gradient is sparse";
    }
    gradient = originals[i];
    // With masters, a backward that has failed leaves gradients of the module's own.
    if (&gradient != &trained_[i].mutable_grad()) trained_[i].mutable_grad().reset();
  }
  return why;
}

std::vector<at::Tensor> StepGraphs::bring_in_gradients(const CapturedStep& captured) {
  std::vector<at::Tensor> elsewhere(trained_.size());
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    if (!captured.before[i]) continue;
    at::Tensor& gradient = gradient_of(i);
    if (gradient.is_same(captured.before[i]->tensor)) continue;
    captured.before[i]->tensor.copy_(gradient);
    elsewhere[i] = gradient;
  }
  return elsewhere;
}

void StepGraphs::bring_out_gradients(const CapturedStep& captured, const std::vector<at::Tensor>& elsewhere) {
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    at::Tensor& gradient = gradient_of(i);
    if (elsewhere[i].defined()) {
      elsewhere[i].copy_(captured.after[i]->tensor);
      gradient = elsewhere[i];
    } else if (captured.after[i]) {
      gradient = captured.after[i]->tensor;
    }
  }
}

}  // namespace stagecraft
