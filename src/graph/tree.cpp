#include "stagecraft/graph/tree.h"

#include "parse_json.h"
#include "stagecraft/core/error.h"

namespace stagecraft::graph {
namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 64;

std::vector<std::string> names_in(const Json& context, std::size_t children) {
  if (!context.is_string()) return {};
  const Json parsed = json::parse_or_null<Json>(context.get_ref<const std::string&>());
  if (!parsed.is_array() || parsed.size() != children) return {};
  std::vector<std::string> names;
  for (const Json& key : parsed) {
    if (!key.is_string() && !key.is_number_integer()) return {};
    names.push_back(key.is_string() ? key.get<std::string>() : key.dump());
  }
  return names;
}

Tree convert(const Json& node, int depth) {
  if (depth > kDeepest) throw InvalidArgument("nested more than " + std::to_string(kDeepest) + " deep");
  if (!node.is_object() || !node.contains("type") || !node.contains("children_spec") ||
      !node["children_spec"].is_array()) {
    throw InvalidArgument("an entry without type or children_spec");
  }
  if (node["type"].is_null()) return {};
  Tree tree;
  for (const Json& child : node["children_spec"]) tree.children.push_back(convert(child, depth + 1));
  tree.keys = node.contains("context") ? names_in(node["context"], tree.children.size()) : std::vector<std::string>{};
  const bool is_sequence = node["type"] == "builtins.tuple" || node["type"] == "builtins.list";
  const bool is_dict = node["type"] == "builtins.dict" || (!is_sequence && !tree.keys.empty());
  if (!is_dict) tree.keys.clear();
  tree.kind = is_dict ? Tree::Kind::kDict : Tree::Kind::kList;
  if (is_dict && tree.keys.size() != tree.children.size()) throw InvalidArgument("a dict whose keys are not names");
  return tree;
}

}  // namespace

int Tree::leaves() const {
  if (kind == Kind::kLeaf) return 1;
  int total = 0;
  for (const Tree& child : children) total += child.leaves();
  return total;
}

Tree parse_tree(const std::string& text) {
  const Json parsed = json::parse_or_null<Json>(text);
  if (!parsed.is_array() || parsed.size() != 2 || parsed[0] != 1) {
    throw InvalidArgument("not a tree specification of version 1");
  }
  return convert(parsed[1], 0);
}

}  // namespace stagecraft::graph
