// Effects and costs of nodes that run graphs of their own, from those of the nodes inside.

#include <algorithm>
#include <map>
#include <set>

#include "stagecraft/graph/operators.h"

namespace stagecraft::graph {
namespace {

/// Union-find over the values that one node of control flow and its bodies use.
class Sharing {
 public:
  ValueId find(ValueId value) {
    ValueId root = value;
    for (auto up = parents_.find(root); up != parents_.end() && up->second != root; up = parents_.find(root))
      root = up->second;
    parents_[value] = root;
    return root;
  }
  void join(ValueId a, ValueId b) {
    if (a != kNoValue && b != kNoValue) parents_[find(a)] = find(b);
  }
  void join(const Argument& a, ValueId b) {
    if (const auto* use = std::get_if<Use>(&a)) join(use->value, b);
  }

 private:
  std::map<ValueId, ValueId> parents_;
};

class ControlEffects {
 public:
  explicit ControlEffects(const Node& node)
      : node_(node), first_(node.target == "higher_order::cond" ? 1 : 0), carried_(node.carried) {}

  Effects run() {
    for (const Body& body : node_.bodies) add(body);
    const Body& last = node_.bodies.back();
    if (goes_round(last)) {
      for (std::size_t i = 0; i < carried(); ++i) sharing_.join(last.outputs[i], last.formals[i]);
    }
    for (const Body& body : node_.bodies) add_results(body);
    return found();
  }

 private:
  [[nodiscard]] std::size_t carried() const { return static_cast<std::size_t>(carried_); }

  void add(const Body& body) {
    for (std::size_t i = 0; i < body.formals.size(); ++i) {
      sharing_.join(node_.arguments[first_ + i].value, body.formals[i]);
    }
    for (const Node& node : body.nodes) {
      const Effects own = effects_of(node);
      random_ |= own.random;
      changed_.insert(own.changes.begin(), own.changes.end());
      if (own.shares.empty()) continue;
      for (const ValueId made : node.makes()) {
        for (const ValueId shared : own.shares) sharing_.join(made, shared);
      }
    }
  }

  /// Whether an iteration may get memory that an earlier one was given, and so return or change it.
  bool goes_round(const Body& body) {
    const std::size_t outputs = std::min(carried(), body.outputs.size());
    std::set<ValueId> touched;
    for (const ValueId value : changed_) touched.insert(sharing_.find(value));
    for (std::size_t i = 0; i < outputs; ++i) {
      if (const auto* use = std::get_if<Use>(&body.outputs[i])) touched.insert(sharing_.find(use->value));
    }
    return std::any_of(body.formals.begin(), body.formals.begin() + static_cast<std::ptrdiff_t>(outputs),
                       [&](ValueId value) { return value != kNoValue && touched.contains(sharing_.find(value)); });
  }

  /// Branches and carried values return what the body does; outputs of a scan or map are stacked in new memory.
  void add_results(const Body& body) {
    const bool is_condition = node_.target == "higher_order::while_loop" && &body == &node_.bodies.front();
    if (is_condition) return;
    const std::size_t returned = first_ == 1 ? body.outputs.size() : carried();
    for (std::size_t i = 0; i < std::min(returned, node_.results.size()); ++i) {
      for (const ValueId result : node_.results[i].values) sharing_.join(body.outputs[i], result);
    }
  }

  Effects found() {
    Effects effects;
    effects.random = random_;
    std::set<ValueId> changed;
    for (const ValueId value : changed_) changed.insert(sharing_.find(value));
    std::set<ValueId> returned;
    for (const ValueId value : node_.makes()) returned.insert(sharing_.find(value));
    for (const ValueId value : node_.uses()) {
      if (changed.contains(sharing_.find(value))) effects.changes.push_back(value);
      if (returned.contains(sharing_.find(value))) effects.shares.push_back(value);
    }
    return effects;
  }

  const Node& node_;
  std::size_t first_;
  int carried_;
  Sharing sharing_;
  std::set<ValueId> changed_;
  bool random_ = false;
};

}  // namespace

Effects control_flow_effects(const Node& node) { return ControlEffects(node).run(); }

double iterations_of(const Program& program, const Node& node) {
  if (node.sliced == 0) return 1;
  const auto* use = std::get_if<Use>(&node.arguments[static_cast<std::size_t>(node.carried)].value);
  if (use == nullptr || use->value == kNoValue) return 1;
  const std::vector<Size>& sizes = program.values[static_cast<std::size_t>(use->value)].tensor.sizes;
  return sizes.empty() ? 1 : static_cast<double>(std::max<std::int64_t>(1, sizes.front().value));
}

double over_bodies(const Program& program, const Node& node, const std::function<double(const Node&)>& cost) {
  double most = 0;
  double all = 0;
  for (const Body& body : node.bodies) {
    double own = 0;
    for (const Node& inner : body.nodes) own += cost(inner);
    most = std::max(most, own);
    all += own;
  }
  return node.target == "higher_order::cond" ? most : iterations_of(program, node) * all;
}

}  // namespace stagecraft::graph
