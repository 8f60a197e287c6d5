#include "split_plan.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <unordered_map>

namespace stagecraft {

using torch::autograd::Edge;
using torch::autograd::Node;

namespace {

/// Whether every node is in the list only once.
bool all_different(const SplitPlan::Nodes& nodes) {
  std::vector<const Node*> sorted;
  sorted.reserve(nodes.size());
  for (const NodePtr* node : nodes) sorted.push_back(node->get());
  std::sort(sorted.begin(), sorted.end());
  return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
}

/// A hook on the weight would run in the input part.
bool has_hooks(Node& weight) { return !weight.tensor_pre_hooks().empty(); }

}  // namespace

// `match` and `learn` number nodes in the same way: roots in their order, then breadth first, edge by edge.

bool SplitPlan::match(std::span<const Edge> roots, std::span<const Edge> inputs, Nodes& nodes) const {
  if (times_learnt == 0 || roots.size() != roots_.size() || inputs.size() != inputs_.size()) return false;
  nodes.clear();
  nodes.reserve(nodes_.size());
  // Whether the edge leads where the plan says; a node met for the first time takes the next number.
  const auto leads_to = [&](const Edge& edge, Index planned) {
    if (!edge.is_valid()) return planned == kNone;
    if (planned == kNone || planned > nodes.size()) return false;
    if (planned < nodes.size()) return nodes[planned]->get() == edge.function.get();
    nodes.push_back(&edge.function);
    return true;
  };
  for (std::size_t i = 0; i < roots.size(); ++i) {
    if (!leads_to(roots[i], roots_[i])) return false;
  }
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const Node& node = **nodes[n];
    const NodeShape& shape = nodes_[n];
    if (node.num_outputs() != shape.edges || node.num_inputs() != shape.inputs || typeid(node) != *shape.type) {
      return false;
    }
    for (Index e = 0; e < shape.edges; ++e) {
      if (!leads_to(node.next_edge(e), targets_[shape.first_edge + e])) return false;
    }
  }
  // A leaf at the place of an input must be that input, and no other leaf may be one.
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Node* input = inputs[i].function.get();
    if (inputs_[i] != kNone) {
      if (nodes[inputs_[i]]->get() != input) return false;
    } else if (std::any_of(nodes.begin(), nodes.end(), [&](const NodePtr* node) { return node->get() == input; })) {
      return false;
    }
  }
  if (nodes.size() != nodes_.size() || !all_different(nodes)) return false;
  return std::none_of(lights_.begin(), lights_.end(), [&](Index weight) { return has_hooks(**nodes[weight]); });
}

void SplitPlan::learn(std::span<const Edge> roots, std::span<const Edge> inputs, Nodes& nodes) {
  const int before = times_learnt;
  *this = SplitPlan();
  times_learnt = before + 1;
  nodes.clear();
  std::unordered_map<const Node*, Index> numbers;
  const auto number_of = [&](const Edge& edge) {
    if (!edge.is_valid()) return kNone;
    const auto [found, is_new] = numbers.emplace(edge.function.get(), static_cast<Index>(nodes.size()));
    if (is_new) nodes.push_back(&edge.function);
    return found->second;
  };
  for (const Edge& root : roots) roots_.push_back(number_of(root));
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const Node& node = **nodes[n];
    nodes_.push_back({&typeid(node), static_cast<Index>(targets_.size()), node.num_outputs(), node.num_inputs()});
    const std::string name = node.name();
    is_indivisible_ |= name == "CompiledFunctionBackward" || name == "CheckpointFunctionBackward";
    for (const Edge& edge : node.next_edges()) targets_.push_back(number_of(edge));
  }
  for (const Edge& input : inputs) {
    const auto found = numbers.find(input.function.get());
    inputs_.push_back(found == numbers.end() ? kNone : found->second);
  }
  mark_cuts(nodes);
}

/// For every node, whether a goal can be reached from it.
std::vector<bool> SplitPlan::leading_to(const std::vector<bool>& goals) const {
  std::vector<std::vector<Index>> parents(nodes_.size());
  for (Index n = 0; n < nodes_.size(); ++n) {
    for (Index e = 0; e < nodes_[n].edges; ++e) {
      const Index target = targets_[nodes_[n].first_edge + e];
      if (target != kNone) parents[target].push_back(n);
    }
  }
  std::vector<bool> leads = goals;
  std::vector<Index> queue;
  for (Index n = 0; n < leads.size(); ++n) {
    if (leads[n]) queue.push_back(n);
  }
  while (!queue.empty()) {
    const Index n = queue.back();
    queue.pop_back();
    for (const Index parent : parents[n]) {
      if (leads[parent]) continue;
      leads[parent] = true;
      queue.push_back(parent);
    }
  }
  return leads;
}

/// The weights of at most one dimension that one node alone uses.
std::vector<bool> SplitPlan::light_weights(const Nodes& nodes) const {
  std::vector<Index> users(nodes_.size(), 0);
  for (const Index target : targets_) {
    if (target != kNone) ++users[target];
  }
  for (const Index root : roots_) {
    if (root != kNone) ++users[root];
  }
  std::vector<bool> light(nodes_.size(), false);
  for (Index n = 0; n < nodes_.size(); ++n) {
    const auto* const weight = dynamic_cast<const torch::autograd::AccumulateGrad*>(nodes[n]->get());
    light[n] = weight != nullptr && weight->variable.dim() <= 1 && users[n] == 1 && !has_hooks(**nodes[n]);
  }
  return light;
}

void SplitPlan::mark_cuts(const Nodes& nodes) {
  std::vector<bool> is_input(nodes_.size(), false);
  for (const Index input : inputs_) {
    if (input != kNone) is_input[input] = true;
  }
  std::vector<bool> is_weight(nodes_.size());
  for (Index n = 0; n < nodes_.size(); ++n) is_weight[n] = nodes_[n].edges == 0 && !is_input[n];
  const std::vector<bool> path = leading_to(is_input);
  const std::vector<bool> to_weights = leading_to(is_weight);

  for (const Index root : roots_) {
    root_on_path_.push_back(root != kNone && path[root]);
    root_only_weights_.push_back(root != kNone && !path[root] && to_weights[root]);
  }
  const std::vector<bool> light = light_weights(nodes);
  for (Index n = 0; n < nodes_.size(); ++n) {
    if (!path[n]) continue;
    const auto behind = [&](Index e) { return targets_[nodes_[n].first_edge + e]; };
    bool is_fork = false;
    std::vector<Index> own;  // light weights
    for (Index e = 0; e < nodes_[n].edges; ++e) {
      if (behind(e) == kNone || path[behind(e)] || !to_weights[behind(e)]) continue;
      if (light[behind(e)]) {
        own.push_back(behind(e));
      } else {
        is_fork = true;
      }
    }
    if (!is_fork) {
      if (!is_input[n]) spent_.push_back(n);
      for (const Index weight : own) arrivals_.push_back({weight, 0});
      lights_.insert(lights_.end(), own.begin(), own.end());
      continue;
    }
    for (Index input = 0; input < (*nodes[n])->num_inputs(); ++input) arrivals_.push_back({n, input});
    for (Index e = 0; e < nodes_[n].edges; ++e) {
      if (behind(e) != kNone && path[behind(e)]) cuts_.push_back({n, e});
    }
  }
}

bool SplitPlan::reaches_any_input() const {
  return std::any_of(inputs_.begin(), inputs_.end(), [](Index input) { return input != kNone; });
}

}  // namespace stagecraft
