#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/graph/program.h"

namespace stagecraft::graph {

/// Programs written by hand, node by node.
class ProgramBuilder {
 public:
  ProgramBuilder() {
    program_.contexts.emplace_back();
    program_.modules.emplace_back();
  }

  /// Dynamic sizes have a name: size("s0", 8).
  static Size size(std::string expression, std::int64_t value) { return {value, std::move(expression)}; }

  ValueId user(const std::string& name, std::vector<Size> sizes) {
    return input(Input::Kind::kUser, name, std::move(sizes));
  }
  ValueId parameter(const std::string& name, std::vector<Size> sizes = {{4}}) {
    return input(Input::Kind::kParameter, name, std::move(sizes));
  }
  ValueId buffer(const std::string& name, std::vector<Size> sizes = {{4}}) {
    return input(Input::Kind::kBuffer, name, std::move(sizes));
  }

  /// Nodes that follow are in this module.
  ProgramBuilder& in(const std::string& path) {
    module_ = program_.find_module(path);
    if (module_ >= 0) return *this;
    module_ = static_cast<int>(program_.modules.size());
    program_.modules.push_back({path, "Module", 0});
    return *this;
  }

  /// A node that makes one tensor of these sizes.
  ValueId node(const std::string& target, const std::vector<ValueId>& uses, std::vector<Size> sizes = {{4}}) {
    return add(target, uses, tensor("", std::move(sizes)));
  }
  /// A node that makes an integer.
  ValueId number(const std::string& target, const std::vector<ValueId>& uses, Size size) {
    ValueInfo info;
    info.kind = ValueInfo::Kind::kInteger;
    info.number = std::move(size);
    return add(target, uses, std::move(info));
  }

  ProgramBuilder& output(ValueId value) {
    program_.outputs.emplace_back(Use{value});
    return *this;
  }
  ProgramBuilder& update(ValueId buffer, ValueId value) {
    for (std::size_t i = 0; i < program_.inputs.size(); ++i) {
      if (program_.inputs[i].value == buffer) program_.updates.push_back({static_cast<int>(i), value});
    }
    return *this;
  }

  Program& program() { return program_; }
  /// The node that makes a value.
  [[nodiscard]] int maker(ValueId value) const {
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      const std::vector<ValueId> made = program_.nodes[i].makes();
      if (!made.empty() && made.front() == value) return static_cast<int>(i);
    }
    return -1;
  }

 private:
  static ValueInfo tensor(const std::string& name, std::vector<Size> sizes) {
    ValueInfo info;
    info.name = name;
    info.tensor = {ElementType::kFloat, std::move(sizes)};
    return info;
  }

  ValueId value(ValueInfo info) {
    const auto id = static_cast<ValueId>(program_.values.size());
    program_.values.push_back(std::move(info));
    return id;
  }

  ValueId input(Input::Kind kind, const std::string& name, std::vector<Size> sizes) {
    Input own;
    own.kind = kind;
    own.name = name;
    own.stored.element = ElementType::kFloat;
    for (const Size& size : sizes) own.stored.sizes.push_back(size.value);
    own.value = value(tensor(name, std::move(sizes)));
    program_.inputs.push_back(std::move(own));
    return program_.inputs.back().value;
  }

  ValueId add(const std::string& target, const std::vector<ValueId>& uses, ValueInfo made) {
    Node node;
    node.target = target;
    // "aten::mul_.Tensor" as "mul__3".
    const std::size_t colons = target.find("::");
    node.name = colons == std::string::npos ? target : target.substr(colons + 2);
    node.name.resize(std::min(node.name.size(), node.name.find('.')));
    node.name += '_';
    node.name += std::to_string(program_.nodes.size());
    node.module = module_;
    for (const ValueId used : uses) node.arguments.push_back({"argument", Use{used}});
    made.name = node.name;
    const ValueId result = value(std::move(made));
    node.results.push_back({false, {result}});
    program_.nodes.push_back(std::move(node));
    return result;
  }

  Program program_;
  int module_ = 0;
};

}  // namespace stagecraft::graph
