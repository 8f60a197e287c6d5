#pragma once

#include <vector>

#include "stagecraft/graph/operators.h"
#include "stagecraft/graph/program.h"

/// What must be known about the values of a program to cut it: where each is made, which stages can make it themselves,
/// what shares memory with it, and how long it lives.
namespace stagecraft::graph {

/// Finds which values must be made once and sent, and which any stage can make for itself.
class Analysis {
 public:
  explicit Analysis(const Program& program);

  enum class Origin : std::uint8_t {
    kData,      ///< Depends on user inputs, parameters, randomness, or memory changed in place.
    kConstant,  ///< A tensor that depends only on constants and sizes.
    kSize,      ///< A number computed from sizes.
  };
  [[nodiscard]] Origin origin(ValueId value) const { return origins_[static_cast<std::size_t>(value)]; }
  /// The node that makes the value; -1 for an input.
  [[nodiscard]] int maker(ValueId value) const { return makers_[static_cast<std::size_t>(value)]; }
  /// The index in Program::inputs of a value that is an input; -1 for a value that a node makes.
  [[nodiscard]] int input(ValueId value) const { return inputs_[static_cast<std::size_t>(value)]; }
  /// Whether the node belongs to exactly one stage. Other nodes are repeated in every stage that needs them.
  [[nodiscard]] bool is_owned(int node) const { return owned_[static_cast<std::size_t>(node)]; }

  /// A group of tensors that may share memory which is changed in place, and the nodes and updates that change it.
  struct Changed {
    std::vector<ValueId> values;
    std::vector<int> nodes;
    std::vector<int> updates;  // indices in Program::updates
  };
  [[nodiscard]] const std::vector<Changed>& changed() const { return changed_; }
  /// By value: whether it is in a group of `changed`.
  [[nodiscard]] const std::vector<bool>& is_changed() const { return is_changed_; }

 private:
  void find_changed(const Program& program, const std::vector<Effects>& effects);
  void find_origins(const Program& program, const std::vector<Effects>& effects);

  std::vector<Origin> origins_;
  std::vector<int> makers_;
  std::vector<int> inputs_;
  std::vector<bool> owned_;
  std::vector<Changed> changed_;
  std::vector<bool> is_changed_;  // by value
};

/// Lifetimes of the values that a stage must receive because it cannot make them itself. Positions are indices of
/// nodes; user inputs are made at -1, and the program's outputs are used at `end`, after the last node.
///
/// A value that may cross a cut crosses the cut before node p exactly when made < p <= last_use.
class Lifetimes {
 public:
  Lifetimes(const Program& program, const Analysis& analysis);

  [[nodiscard]] int end() const { return end_; }
  [[nodiscard]] int made(ValueId value) const { return made_[static_cast<std::size_t>(value)]; }
  /// First and last use by an owned node or as an output; `end` + 1 and -2 without a use.
  [[nodiscard]] int first_use(ValueId value) const { return first_use_[static_cast<std::size_t>(value)]; }
  [[nodiscard]] int last_use(ValueId value) const { return last_use_[static_cast<std::size_t>(value)]; }
  /// Whether the value may be sent: not for weights, nor for values that every stage can make itself.
  [[nodiscard]] bool may_cross(ValueId value) const { return may_cross_[static_cast<std::size_t>(value)]; }
  [[nodiscard]] bool crosses(ValueId value, int place) const {
    return may_cross(value) && made(value) < place && place <= last_use(value);
  }

  /// A stage that begins at `from` receives a value if it ends after this position.
  [[nodiscard]] int first_taken(int from) const;
  /// A stage that ends before `to` sends a value if it begins at or before this position; -2 if no such stage does.
  [[nodiscard]] int last_left(int to) const;

 private:
  void use(ValueId value, int position);

  int end_;
  std::vector<int> made_;
  std::vector<int> first_use_;
  std::vector<int> last_use_;
  std::vector<bool> may_cross_;
  std::vector<int> earliest_;  // by position: where the oldest value used there is made
  std::vector<int> latest_;    // by position + 1: last use of any value made there
};

}  // namespace stagecraft::graph
