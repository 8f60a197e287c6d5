#pragma once

#include <vector>

#include "stagecraft/graph/operators.h"
#include "stagecraft/graph/program.h"

namespace stagecraft::graph {

/// Which values must be made once and sent, and which any stage can make for itself.
class Analysis {
 public:
  explicit Analysis(const Program& program);

  enum class Origin : std::uint8_t {
    kData,      ///< From user inputs, parameters, randomness, or what is changed in place.
    kConstant,  ///< From constants and sizes alone.
    kSize,      ///< A number computed from sizes.
  };
  [[nodiscard]] Origin origin(ValueId value) const { return origins_[static_cast<std::size_t>(value)]; }
  /// The node that makes it; -1: an input.
  [[nodiscard]] int maker(ValueId value) const { return makers_[static_cast<std::size_t>(value)]; }
  /// The place in Program::inputs of what no node makes.
  [[nodiscard]] int input(ValueId value) const { return inputs_[static_cast<std::size_t>(value)]; }
  /// A node that belongs to exactly one stage. Others are made again wherever they are needed.
  [[nodiscard]] bool is_owned(int node) const { return owned_[static_cast<std::size_t>(node)]; }

  /// Tensors that may share memory, of which one is changed in place, and what changes it.
  struct Changed {
    std::vector<ValueId> values;
    std::vector<int> nodes;
    std::vector<int> updates;  // in Program::updates
  };
  [[nodiscard]] const std::vector<Changed>& changed() const { return changed_; }
  /// By value.
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
