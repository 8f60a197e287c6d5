#pragma once

#include <vector>

#include "analysis.h"

namespace stagecraft::graph {

/// From where to where the values live that a stage must receive because it cannot make them itself. Positions are
/// those of nodes; user inputs are made at -1, and the program's outputs are used at `end`, behind the last node.
///
/// A value that may cross does cross a cut before node p exactly when made < p <= last_use.
class Lifetimes {
 public:
  Lifetimes(const Program& program, const Analysis& analysis);

  [[nodiscard]] int end() const { return end_; }
  [[nodiscard]] int made(ValueId value) const { return made_[static_cast<std::size_t>(value)]; }
  /// By nodes that belong to one stage, and as an output. `end` + 1 and -2 without any.
  [[nodiscard]] int first_use(ValueId value) const { return first_use_[static_cast<std::size_t>(value)]; }
  [[nodiscard]] int last_use(ValueId value) const { return last_use_[static_cast<std::size_t>(value)]; }
  /// Not a weight, and nothing that is made again.
  [[nodiscard]] bool may_cross(ValueId value) const { return may_cross_[static_cast<std::size_t>(value)]; }
  [[nodiscard]] bool crosses(ValueId value, int place) const {
    return may_cross(value) && made(value) < place && place <= last_use(value);
  }

  /// A stage that begins at `from` takes something from before it if it ends behind this position.
  [[nodiscard]] int first_taken(int from) const;
  /// A stage that ends before `to` leaves something for later ones if it begins here or before; -2: none does.
  [[nodiscard]] int last_left(int to) const;

 private:
  void use(ValueId value, int position);

  int end_;
  std::vector<int> made_;
  std::vector<int> first_use_;
  std::vector<int> last_use_;
  std::vector<bool> may_cross_;
  std::vector<int> earliest_;  // by position: the earliest made of what is used there
  std::vector<int> latest_;    // by position + 1: the last use of what is made there
};

}  // namespace stagecraft::graph
