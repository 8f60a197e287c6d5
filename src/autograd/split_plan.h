#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <span>
#include <typeinfo>
#include <vector>

namespace stagecraft {

/// LibTorch 2.13 holds nodes in an intrusive_ptr, 2.11 in a shared_ptr.
using NodePtr = decltype(torch::autograd::Edge::function);

/// The shape of a graph, and where to cut graphs of that shape.
///
///   output ── add ── matmul ── relu ── matmul ── input        ── on the path to an input
///              │       │                 │                    │  off it: a branch to weights
///             bias   weight            weight
///
/// The nodes where a branch leaves the path are the forks: both matmuls above. The input part walks the path and
/// captures the gradients that arrive at the forks. Then the path is cut behind every fork. So the weight part, one
/// backward from all forks at once, runs every branch once, and does not reach one fork from another.
///
/// A fork holds the gradient that arrives, and what its node has saved, until the weight part. For a weight of one
/// dimension, such as a bias or the weight of a normalisation, that is thousands of times its gradient, which takes one
/// pass over what the node reads anyway. So these gradients are computed in the input part, and only added up in the
/// weight part: the branch is cut at the weight instead.
class SplitPlan {
 public:
  using Index = std::uint32_t;
  static constexpr Index kNone = UINT32_MAX;

  /// One gradient that arrives at a fork.
  struct Arrival {
    Index node;
    Index input;
  };
  /// An edge from a fork along the path.
  struct Cut {
    Index node;
    Index edge;
  };

  /// The nodes of a graph in the order of the plan, as the pointers inside the graph.
  using Nodes = std::vector<const NodePtr*>;

  /// Finds the nodes of the graph; returns true if it has this plan's shape. Roots and inputs with null edges are left
  /// out.
  bool match(std::span<const torch::autograd::Edge> roots, std::span<const torch::autograd::Edge> inputs,
             Nodes& nodes) const;
  /// Makes this the plan of the graph.
  void learn(std::span<const torch::autograd::Edge> roots, std::span<const torch::autograd::Edge> inputs, Nodes& nodes);

  [[nodiscard]] const std::vector<Arrival>& arrivals() const { return arrivals_; }
  [[nodiscard]] const std::vector<Cut>& cuts() const { return cuts_; }
  /// Nodes of the path that the weight part does not run: what they have saved is not needed after they have run.
  [[nodiscard]] const std::vector<Index>& spent() const { return spent_; }
  /// Whether an input can be reached from a root.
  [[nodiscard]] bool reaches(std::size_t input) const { return inputs_[input] != kNone; }
  [[nodiscard]] bool reaches_any_input() const;
  /// Whether a root lies on a path to an input.
  [[nodiscard]] bool on_path(std::size_t root) const { return root_on_path_[root]; }
  /// Whether the graph has a node that must run only once, with all its results: the backward of what torch.compile has
  /// compiled, and of a reentrant torch.utils.checkpoint.
  [[nodiscard]] bool is_indivisible() const { return is_indivisible_; }
  /// Whether a root leads to weights but to no input.
  [[nodiscard]] bool only_weights(std::size_t root) const { return root_only_weights_[root]; }

  int times_learnt = 0;

 private:
  struct NodeShape {
    const std::type_info* type;
    Index first_edge;  // in targets_
    Index edges;
    Index inputs;  // number of gradients that arrive
  };

  void mark_cuts(const Nodes& nodes);
  [[nodiscard]] std::vector<bool> light_weights(const Nodes& nodes) const;
  [[nodiscard]] std::vector<bool> leading_to(const std::vector<bool>& goals) const;

  std::vector<NodeShape> nodes_;
  std::vector<Index> targets_;  // node behind each edge, kNone for an edge to nowhere
  std::vector<Index> roots_;    // node of each root
  std::vector<Index> inputs_;   // node of each input
  std::vector<bool> root_on_path_;
  std::vector<bool> root_only_weights_;
  std::vector<Arrival> arrivals_;
  std::vector<Cut> cuts_;
  std::vector<Index> lights_;  // weights whose gradients the input part computes
  std::vector<Index> spent_;
  bool is_indivisible_ = false;
};

}  // namespace stagecraft
