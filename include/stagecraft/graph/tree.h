#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// The nesting of a model's inputs and outputs.
namespace stagecraft::graph {

struct Tree {
  enum class Kind : std::uint8_t { kLeaf, kList, kDict };

  Kind kind = Kind::kLeaf;
  std::vector<std::string> keys = {};  ///< For a dict: one per child.
  std::vector<Tree> children = {};

  [[nodiscard]] int leaves() const;
  bool operator==(const Tree&) const = default;
};

/// Parses a PyTorch tree specification. Tuples, lists and other types without names become lists; dicts and classes
/// with named fields become dicts. Throws InvalidArgument.
Tree parse_tree(const std::string& text);

}  // namespace stagecraft::graph
