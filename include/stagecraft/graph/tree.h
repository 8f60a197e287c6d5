#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// How inputs and outputs of a model are nested.
namespace stagecraft::graph {

struct Tree {
  enum class Kind : std::uint8_t { kLeaf, kList, kDict };

  Kind kind = Kind::kLeaf;
  std::vector<std::string> keys = {};  ///< Of a dict, one per child.
  std::vector<Tree> children = {};

  [[nodiscard]] int leaves() const;
  bool operator==(const Tree&) const = default;
};

/// From the text of a Python tree specification. Tuples, lists and whatever has no names become lists; dicts and
/// classes with named fields become dicts. Throws InvalidArgument.
Tree parse_tree(const std::string& text);

}  // namespace stagecraft::graph
