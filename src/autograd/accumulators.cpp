#include "stagecraft/autograd/accumulators.h"

#include <torch/csrc/autograd/variable.h>

#include <memory>

namespace stagecraft {
namespace {

// LibTorch 2.13 holds nodes in an intrusive_ptr, 2.11 in a shared_ptr.
template <typename Node>
auto weak(const c10::intrusive_ptr<Node>& node) {
  return c10::weak_intrusive_ptr<Node>(node);
}
template <typename Node>
auto weak(const std::shared_ptr<Node>& node) {
  return std::weak_ptr<Node>(node);
}

/// Somebody counts on this very node.
bool has_hooks(const at::Tensor& weight) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(weight);
  return node && (!node->pre_hooks().empty() || !node->post_hooks().empty());
}

}  // namespace

Accumulators::Accumulators(std::span<const at::Tensor> weights) {
  for (const at::Tensor& weight : weights) {
    if (!weight.defined() || !weight.requires_grad() || !weight.is_leaf() || has_hooks(weight)) continue;
    weights_.push_back(weight);
    torch::autograd::impl::set_grad_accumulator(weight, weak(NodePtr()));  // so that a new one is made
    nodes_.push_back(torch::autograd::impl::grad_accumulator(weight));
  }
}

void Accumulators::use() const {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    torch::autograd::impl::set_grad_accumulator(weights_[i], weak(nodes_[i]));
  }
}

}  // namespace stagecraft
