#pragma once

#include <map>
#include <set>

#include "analysis.h"
#include "stagecraft/graph/cut.h"

namespace stagecraft::graph {

/// Assembles the stages of one cut.
class Cutter {
 public:
  Cutter(const Program& program, const Analysis& analysis, std::vector<int> places);

  /// Throws InvalidArgument as `cut` does.
  CutProgram run();

 private:
  struct Needs {
    std::set<int> nodes;
    std::set<ValueId> received;
    std::set<int> loaded;
    std::set<ValueId> numbers;
    std::vector<ValueId> open_numbers;  // those of `numbers` not yet processed
    std::map<ValueId, SizeOf> sizes;
  };

  void check_places() const;
  void place_nodes();
  void close_over_tensors();
  void need(int stage, ValueId value);
  void need_one(int stage, ValueId value, std::vector<ValueId>& open);
  void find_numbers();
  void find_number(int stage, ValueId number);
  bool read_off(int stage, ValueId number);
  [[nodiscard]] bool has_tensor(int stage, ValueId tensor) const;
  void attach_updates();
  void attach_unused();
  void check_connected() const;
  void check_sharing();
  void check_sharing(const Analysis::Changed& group);
  CutProgram assemble();

  /// The first stage that has a value: that of the node that makes it, 0 for user inputs. For a size, the stage of its
  /// tensor, wherever the node is that reads the size.
  [[nodiscard]] int home(ValueId value) const;
  [[nodiscard]] int stage_of(int node) const { return stage_of_node_[static_cast<std::size_t>(node)]; }
  [[nodiscard]] Needs& needs(int stage) { return needs_[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] const Needs& needs(int stage) const { return needs_[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] const ValueInfo& info(ValueId value) const { return program_.values[static_cast<std::size_t>(value)]; }
  [[nodiscard]] std::string describe(int node) const {
    return program_.describe(program_.nodes[static_cast<std::size_t>(node)]);
  }
  [[nodiscard]] std::string describe_value(ValueId value) const;

  const Program& program_;
  const Analysis& analysis_;
  std::vector<int> places_;
  int stages_;
  std::vector<int> stage_of_node_;
  std::vector<Needs> needs_;
  std::vector<std::vector<ValueId>> copies_;
  std::vector<std::vector<Update>> updates_;
};

}  // namespace stagecraft::graph
