#include "calling.h"

#include <algorithm>
#include <map>

#include "stagecraft/core/error.h"
#include "stagecraft/core/text.h"
#include "torch_types.h"

namespace stagecraft {
namespace {

using graph::Tree;

/// An input of the program; `what` names it in errors: "argument 0", "'mask'".
struct Named {
  const Tree* tree;
  std::string name;  // empty: only by position
  std::string what;
};

std::vector<Named> formals(const graph::Program& program) {
  std::vector<Named> all;
  for (std::size_t i = 0; i < program.arguments.children.size(); ++i) {
    const std::string name = i < program.argument_names.size() ? program.argument_names[i] : "";
    all.push_back(
        {&program.arguments.children[i], name, name.empty() ? "argument " + std::to_string(i) : "'" + name + "'"});
  }
  for (std::size_t i = 0; i < program.keywords.children.size(); ++i) {
    const std::string& name = program.keywords.keys[i];
    all.push_back({&program.keywords.children[i], name, "'" + name + "'"});
  }
  return all;
}

/// Appends the leaves of a value; without a value, a null for each leaf of the tree.
void flatten(const Tree& tree, const Value* value, const std::string& what, std::vector<const Value*>& leaves,
             std::vector<std::string>& names) {
  if (tree.kind == Tree::Kind::kLeaf) {
    leaves.push_back(value);
    names.push_back(what);
    return;
  }
  const bool is_list = tree.kind == Tree::Kind::kList;
  if (value != nullptr && (is_list ? !value->is_list() : !value->is_dict())) {
    throw InvalidArgument(what + " must be a " + (is_list ? "list" : "dict") + " of " +
                          std::to_string(tree.children.size()) + ", got " + value->kind());
  }
  if (value != nullptr && is_list && value->list().size() != tree.children.size()) {
    throw InvalidArgument(what + " must be a list of " + std::to_string(tree.children.size()) + ", got " +
                          value->kind());
  }
  for (std::size_t i = 0; i < tree.children.size(); ++i) {
    const Value* child = nullptr;
    std::string label = what;
    label += is_list ? "[" : "['";
    label += is_list ? std::to_string(i) : tree.keys[i];
    label += is_list ? "]" : "']";
    if (value != nullptr && is_list) child = &value->list()[i];
    if (value != nullptr && !is_list) {
      for (const auto& [key, item] : value->dict()) {
        if (key == tree.keys[i]) child = &item;
      }
    }
    flatten(tree.children[i], child, label, leaves, names);
  }
}

/// Checks tensors against what the program takes; dynamic sizes of one name must agree.
class InputCheck {
 public:
  InputCheck(const graph::Program& program, bool any_float) : program_(program), any_float_(any_float) {}

  void check(const graph::Input& input, const Value& value, const std::string& what) {
    const graph::ValueInfo& info = program_.values[static_cast<std::size_t>(input.value)];
    if (!info.is_tensor()) return;
    if (!value.is_tensor() || !value.tensor().defined()) {
      faults_.add(what + " must be a tensor, got " + value.kind());
      return;
    }
    const at::Tensor& tensor = value.tensor();
    const std::vector<graph::Size>& sizes = info.tensor.sizes;
    const at::ScalarType type = scalar_type(info.tensor.element);
    bool fits = tensor.scalar_type() == type || (any_float_ && tensor.is_floating_point() && at::isFloatingType(type));
    fits &= tensor.dim() == static_cast<std::int64_t>(sizes.size());
    std::string hint;
    for (std::size_t d = 0; fits && d < sizes.size(); ++d)
      fits &= fits_size(sizes[d], tensor.size(static_cast<std::int64_t>(d)), hint);
    if (fits) return;
    faults_.add(what + " is " + TensorSpec::of(tensor).text() + ", but the program takes " +
                std::string(text(info.tensor.element)) + " " + text(sizes) + hint);
  }

  void finish(StageId stage) const {
    if (!faults_.empty()) throw ShapeError(faults_.text(), stage);
  }

 private:
  bool fits_size(const graph::Size& expected, std::int64_t size, std::string& hint) {
    if (expected.fixed()) {
      if (size == expected.value) return true;
      hint = ": give microbatches of just that size, or export with a dynamic dimension (torch.export.Dim)";
      return false;
    }
    const auto range = program_.ranges.find(expected.expression);
    if (range != program_.ranges.end()) {
      const bool too_small = range->second.least && size < *range->second.least;
      const bool too_large = range->second.most && size > *range->second.most;
      if (too_small || too_large) {
        hint = ", with " + expected.expression +
               (too_small ? " at least " + std::to_string(*range->second.least)
                          : " at most " + std::to_string(*range->second.most));
        return false;
      }
    }
    const auto [entry, added] = seen_.emplace(expected.expression, size);
    if (entry->second == size) return true;
    hint = ", with " + expected.expression + " = " + std::to_string(entry->second) + " elsewhere";
    return false;
  }

  const graph::Program& program_;
  bool any_float_;
  std::map<std::string, std::int64_t> seen_;
  Faults faults_;
};

bool same(const Value& value, const graph::Argument& fixed) {
  const Value::Held& held = value.held();
  if (std::holds_alternative<std::monostate>(fixed)) return value.is_none();
  if (const auto* integer = std::get_if<std::int64_t>(&fixed)) {
    const auto* own = std::get_if<std::int64_t>(&held);
    return own != nullptr && *own == *integer;
  }
  if (const auto* flag = std::get_if<bool>(&fixed)) {
    const auto* own = std::get_if<bool>(&held);
    return own != nullptr && *own == *flag;
  }
  if (const auto* real = std::get_if<double>(&fixed)) {
    const auto* own = std::get_if<double>(&held);
    const auto* integer = std::get_if<std::int64_t>(&held);
    return (own != nullptr && *own == *real) || (integer != nullptr && static_cast<double>(*integer) == *real);
  }
  if (const auto* words = std::get_if<std::string>(&fixed)) {
    const auto* own = std::get_if<std::string>(&held);
    return own != nullptr && *own == *words;
  }
  return true;
}

}  // namespace

ValueList user_inputs(const graph::Program& program, const StageCall& call) {
  const std::vector<Named> expected = formals(program);
  std::vector<const Value*> given(expected.size(), nullptr);
  if (call.arguments.size() > expected.size()) {
    throw InvalidArgument("the program takes " + std::to_string(expected.size()) + " inputs, but got " +
                          std::to_string(call.arguments.size()) + " arguments: give as many as were exported");
  }
  for (std::size_t i = 0; i < call.arguments.size(); ++i) given[i] = &call.arguments[i];
  for (const auto& [name, value] : call.keywords) {
    const auto found =
        std::find_if(expected.begin(), expected.end(), [&key = name](const Named& one) { return one.name == key; });
    if (found == expected.end()) {
      std::string names;
      for (const Named& one : expected) names += (names.empty() ? "" : ", ") + (one.name.empty() ? one.what : one.name);
      throw InvalidArgument("the program has no input '" + name + "': it takes " + names);
    }
    given[static_cast<std::size_t>(found - expected.begin())] = &value;
  }
  std::vector<const Value*> leaves;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < expected.size(); ++i)
    flatten(*expected[i].tree, given[i], expected[i].what, leaves, names);

  ValueList inputs;
  InputCheck check(program, call.any_float);
  std::size_t leaf = 0;
  for (const graph::Input& input : program.inputs) {
    if (input.is_loaded()) continue;
    const Value* value = leaves[leaf];
    const std::string& what = names[leaf++];
    if (input.kind == graph::Input::Kind::kFixed) {
      if (value != nullptr && !same(*value, input.fixed)) {
        throw InvalidArgument(
            what + " was fixed when the program was exported: leave it out, or export again with the other value");
      }
      continue;
    }
    if (value == nullptr) throw InvalidArgument("the program's input " + what + " is missing: give it to step");
    check.check(input, *value, what);
    inputs.push_back(*value);
  }
  check.finish(call.stage);
  return inputs;
}

}  // namespace stagecraft
