#pragma once

#include <vector>

#include "analysis.h"

namespace stagecraft::graph {

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
