#pragma once

#include <vector>

#include "stagecraft/graph/operators.h"
#include "stagecraft/graph/program.h"

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

}  // namespace stagecraft::graph
