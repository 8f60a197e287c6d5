#include "model_facts.h"

#include <algorithm>
#include <array>
#include <functional>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stagecraft/graph/operators.h"
#include "stagecraft/graph/report.h"

namespace stagecraft::cli {
namespace {

using graph::Argument;
using graph::Input;
using graph::Program;

std::string value_text(const Program& program, graph::ValueId id) {
  if (id == graph::kNoValue) return "nothing";
  const graph::ValueInfo& value = program.values[static_cast<std::size_t>(id)];
  switch (value.kind) {
    case graph::ValueInfo::Kind::kTensor:
      return fmt::format("{} {}", graph::text(value.tensor.element), graph::text(value.tensor.sizes));
    case graph::ValueInfo::Kind::kInteger:
      return value.number.fixed() ? "an integer" : fmt::format("an integer ({})", value.number.expression);
    case graph::ValueInfo::Kind::kReal:
      return "a real number";
    case graph::ValueInfo::Kind::kFlag:
      return "true or false";
  }
  return {};
}

struct FixedText {
  std::string operator()(std::monostate) const { return "None"; }
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }
  std::string operator()(std::int64_t number) const { return std::to_string(number); }
  std::string operator()(double number) const { return fmt::format("{}", number); }
  std::string operator()(const std::string& text) const { return fmt::format("'{}'", text); }
  std::string operator()(graph::ElementType type) const { return std::string(graph::text(type)); }
  std::string operator()(const graph::Device& device) const { return device.type; }
  template <typename Other>
  std::string operator()(const Other& /*unused*/) const {
    return "what it was at export";
  }
};

}  // namespace

std::string port_text(const Program& program, const Argument& argument) {
  if (const auto* use = std::get_if<graph::Use>(&argument)) return value_text(program, use->value);
  if (const auto* uses = std::get_if<graph::Uses>(&argument)) {
    std::vector<std::string> all;
    for (const graph::Use& use : *uses) all.push_back(value_text(program, use.value));
    return fmt::format("{}", fmt::join(all, ", "));
  }
  return "always " + fixed_text(argument);
}

std::string fixed_text(const Argument& argument) { return std::visit(FixedText{}, argument); }

Total total_of(const Program& program, Input::Kind kind) {
  Total total;
  for (const Input& input : program.inputs) {
    if (input.kind != kind) continue;
    ++total.count;
    total.numbers = graph::capped_sum(total.numbers, input.stored.elements());
    total.bytes = graph::capped_sum(total.bytes, input.stored.bytes());
  }
  return total;
}

std::vector<OperatorFigures> operator_figures(const Program& program) {
  std::map<std::string, OperatorFigures> by_name;
  for (const graph::Node& node : program.nodes) {
    OperatorFigures& own = by_name[node.target];
    own.name = node.target;
    ++own.count;
    own.work += graph::work_of(program, node);
  }
  std::vector<OperatorFigures> all;
  for (auto& [name, own] : by_name) all.push_back(std::move(own));
  std::stable_sort(all.begin(), all.end(),
                   [](const OperatorFigures& a, const OperatorFigures& b) { return a.count > b.count; });
  return all;
}

std::map<std::string, std::int64_t> exported_symbols(const Program& program) {
  std::map<std::string, std::int64_t> symbols;
  for (const Input& input : program.inputs) {
    if (input.kind != Input::Kind::kUser) continue;
    const graph::ValueInfo& value = program.values[static_cast<std::size_t>(input.value)];
    std::vector<graph::Size> sizes = value.tensor.sizes;
    if (!value.is_tensor()) sizes = {value.number};
    for (const graph::Size& size : sizes) {
      if (!size.fixed()) symbols.emplace(size.expression, size.value);
    }
  }
  return symbols;
}

namespace {

/// Builds the tree from the paths of nodes and parameters, since a module that only contains others is never called.
class Builder {
 public:
  Builder() : modules_(1), children_(1) {}

  /// Calls `add` with the module of that path and all modules that contain it.
  void visit(const std::string& path, const std::function<void(ModuleFigures&)>& add) {
    constexpr int kDeepest = 64;
    std::size_t at = 0;
    add(modules_[at]);
    for (std::size_t end = 0; end < path.size() && modules_[at].depth < kDeepest;) {
      end = std::min(path.find('.', end == 0 ? 0 : end + 1), path.size());
      at = find_or_add(path.substr(0, end), at);
      add(modules_[at]);
    }
  }

  void set_type(const std::string& path, const std::string& type) {
    if (const auto found = places_.find(path); found != places_.end()) modules_[found->second].type = type;
  }

  [[nodiscard]] std::vector<ModuleFigures> in_order() const {
    std::vector<ModuleFigures> all;
    append(0, all);
    return all;
  }

 private:
  std::size_t find_or_add(const std::string& path, std::size_t parent) {
    const auto [entry, added] = places_.emplace(path, modules_.size());
    if (added) {
      ModuleFigures own;
      own.path = path;
      own.depth = modules_[parent].depth + 1;
      modules_.push_back(std::move(own));
      children_.emplace_back();
      children_[parent].push_back(entry->second);
    }
    return entry->second;
  }

  void append(std::size_t module, std::vector<ModuleFigures>& all) const {
    all.push_back(modules_[module]);
    for (const std::size_t child : children_[module]) append(child, all);
  }

  std::vector<ModuleFigures> modules_;
  std::vector<std::vector<std::size_t>> children_;
  std::unordered_map<std::string, std::size_t> places_ = {{"", 0}};
};

}  // namespace

std::vector<ModuleFigures> module_tree(const graph::Program& program) {
  Builder builder;
  for (const graph::Node& node : program.nodes) {
    const double work = graph::work_of(program, node);
    builder.visit(program.modules[static_cast<std::size_t>(node.module)].path, [&](ModuleFigures& module) {
      ++module.nodes;
      module.work += work;
    });
  }
  for (const graph::Input& input : program.inputs) {
    if (input.kind != graph::Input::Kind::kParameter) continue;
    const std::size_t dot = input.name.rfind('.');
    builder.visit(dot == std::string::npos ? std::string() : input.name.substr(0, dot), [&](ModuleFigures& module) {
      module.parameters = graph::capped_sum(module.parameters, input.stored.elements());
      module.parameter_bytes = graph::capped_sum(module.parameter_bytes, input.stored.bytes());
    });
  }
  for (const graph::Module& module : program.modules) builder.set_type(module.path, module.type);
  return builder.in_order();
}

Json value_json(const graph::Program& program, graph::ValueId id) {
  static constexpr std::array kKinds = {"tensor", "integer", "real", "flag"};
  const graph::ValueInfo& value = program.values[static_cast<std::size_t>(id)];
  Json json = {{"name", value.name}, {"kind", kKinds.at(static_cast<std::size_t>(value.kind))}};
  if (!value.is_tensor()) return json;
  json["type"] = graph::text(value.tensor.element);
  json["sizes"] = Json::array();
  for (const graph::Size& size : value.tensor.sizes) {
    json["sizes"].push_back(size.fixed() ? Json(size.value) : Json(size.expression));
  }
  json["bytes"] = graph::bytes_of(program, id);
  return json;
}

Json missing_json(const graph::Program& program) {
  Json list = Json::array();
  for (const graph::MissingOperator& each : graph::missing_operators(program)) {
    list.push_back({{"name", each.name}, {"count", each.nodes}, {"remedy", graph::remedy_for_missing(each.name)}});
  }
  return list;
}

Json port_json(const graph::Program& program, const graph::Port& port) {
  const auto* use = std::get_if<graph::Use>(&port.argument);
  if (use == nullptr || use->value == graph::kNoValue) {
    return {{"name", port.name}, {"kind", "fixed"}, {"value", fixed_text(port.argument)}};
  }
  Json json = value_json(program, use->value);
  json["name"] = port.name;
  return json;
}

}  // namespace stagecraft::cli
