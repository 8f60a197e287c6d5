#include "stagecraft/graph/training.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "stagecraft/graph/operators.h"

namespace stagecraft::graph {
namespace {

/// Values that may share memory, as one: what is written into one of them is in all of them.
class SharedMemory {
 public:
  explicit SharedMemory(const Program& program) : leader_(program.values.size()) {
    std::iota(leader_.begin(), leader_.end(), 0);
    for (const Node& node : program.nodes) {
      const Effects effects = effects_of(node);
      for (const ValueId made : node.makes()) {
        for (const ValueId shared : effects.shares) join(made, shared);
        for (const ValueId changed : effects.changes) join(made, changed);
      }
    }
  }
  [[nodiscard]] ValueId of(ValueId value) const {
    while (leader_[static_cast<std::size_t>(value)] != value) value = leader_[static_cast<std::size_t>(value)];
    return value;
  }

 private:
  void join(ValueId a, ValueId b) { leader_[static_cast<std::size_t>(of(a))] = of(b); }

  std::vector<ValueId> leader_;
};

bool has_gradient(const Program& program, ValueId value) {
  const ValueInfo& info = program.values[static_cast<std::size_t>(value)];
  // A value whose type the file does not say may be anything.
  return info.is_tensor() && (info.tensor.element == ElementType::kUnknown || is_differentiable(info.tensor.element));
}

bool passes_gradients(const Program& program, const Node& node) {
  if (program.contexts[static_cast<std::size_t>(node.context)].gradients == false) return false;
  return node.target != "aten::detach" && node.target != "aten::detach_";
}

std::set<ValueId> roots_of(const Program& program, const std::vector<int>& outputs) {
  std::set<ValueId> roots;
  for (std::size_t i = 0; i < program.outputs.size(); ++i) {
    const bool is_wanted =
        outputs.empty() || std::find(outputs.begin(), outputs.end(), static_cast<int>(i)) != outputs.end();
    const auto* const use = std::get_if<Use>(&program.outputs[i]);
    if (is_wanted && use != nullptr && use->value != kNoValue) roots.insert(use->value);
  }
  return roots;
}

/// What the roots depend on through gradients. A second pass may find more, where memory is shared.
std::set<ValueId> reached_from(const Program& program, const std::set<ValueId>& roots) {
  const SharedMemory memory(program);
  std::set<ValueId> reached;  // leaders
  for (const ValueId root : roots) {
    if (has_gradient(program, root)) reached.insert(memory.of(root));
  }
  for (std::size_t before = reached.size() + 1; before != reached.size();) {
    before = reached.size();
    for (std::size_t i = program.nodes.size(); i-- > 0;) {
      const Node& node = program.nodes[i];
      if (!passes_gradients(program, node)) continue;
      std::vector<ValueId> results = node.makes();
      const std::vector<ValueId> changes = effects_of(node).changes;
      results.insert(results.end(), changes.begin(), changes.end());
      const bool leads_there = std::any_of(results.begin(), results.end(), [&](ValueId value) {
        return has_gradient(program, value) && reached.contains(memory.of(value));
      });
      if (!leads_there) continue;
      for (const ValueId used : node.uses()) {
        if (has_gradient(program, used)) reached.insert(memory.of(used));
      }
    }
  }
  std::set<ValueId> all;
  for (const Input& input : program.inputs) {
    if (input.value != kNoValue && reached.contains(memory.of(input.value))) all.insert(input.value);
  }
  return all;
}

std::string names_of(const Program& program, const std::vector<int>& inputs) {
  constexpr std::size_t kEnough = 8;
  std::string names;
  for (std::size_t i = 0; i < inputs.size() && i < kEnough; ++i) {
    names += (i == 0 ? "" : ", ") + program.inputs[static_cast<std::size_t>(inputs[i])].name;
  }
  if (inputs.size() > kEnough) names += " and " + std::to_string(inputs.size() - kEnough) + " more";
  return names;
}

}  // namespace

Untrained untrained_parameters(const Program& program, const std::vector<int>& outputs) {
  const std::set<ValueId> roots = roots_of(program, outputs);
  const std::set<ValueId> reached = reached_from(program, roots);
  std::set<ValueId> used = roots;
  for (const Node& node : program.nodes) {
    for (const ValueId value : node.uses()) used.insert(value);
  }
  Untrained result;
  bool any = false;
  bool trained = false;
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    const Input& input = program.inputs[i];
    if (input.kind != Input::Kind::kParameter || !input.stored.requires_grad) continue;
    any = true;
    if (reached.contains(input.value)) {
      trained = true;
    } else {
      (used.contains(input.value) ? result.without_gradients : result.unused).push_back(static_cast<int>(i));
    }
  }
  result.all = any && !trained;
  return result;
}

std::string text(const Program& program, const Untrained& untrained) {
  std::string text;
  if (!untrained.without_gradients.empty()) {
    text = "nothing will train " + names_of(program, untrained.without_gradients) +
           ", for gradients are off where they are used (torch.no_grad, detach, or checkpointing with "
           "use_reentrant=True, which an export leaves without gradients: use use_reentrant=False)";
  }
  if (!untrained.unused.empty()) {
    text += (text.empty() ? "" : "; ") + std::string("nothing will train ") + names_of(program, untrained.unused) +
            ", for the program does not use them";
  }
  return text;
}

}  // namespace stagecraft::graph
