#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <span>
#include <vector>

/// On which stream gradients are added up.
namespace stagecraft {

/// The nodes that add gradients to the .grad of some weights. LibTorch makes one per weight at its first use, and runs
/// it on the stream that was current then. Forwards that alternate between two streams need one of these per stream:
/// otherwise the gradients of one stream's backwards cross to the other, queue behind its work there, and their memory
/// is held back until both streams have passed.
class Accumulators {
 public:
  /// Made on the current stream. Weights that need no gradient are left out, and those whose present node has hooks,
  /// which a new one would not call.
  explicit Accumulators(std::span<const at::Tensor> weights);
  /// Graphs that are made from now on, on the same stream, add gradients there.
  void use() const;

 private:
  using NodePtr = decltype(torch::autograd::Edge::function);

  std::vector<at::Tensor> weights_;
  std::vector<NodePtr> nodes_;
};

}  // namespace stagecraft
