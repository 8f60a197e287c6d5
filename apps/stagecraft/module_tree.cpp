#include "module_tree.h"

#include <functional>
#include <unordered_map>

#include "stagecraft/graph/operators.h"

namespace stagecraft::cli {
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

}  // namespace stagecraft::cli
