// What limits where a program can be cut: nodes that hold many steps, and memory that is changed in place.

#include <algorithm>
#include <array>

#include "stagecraft/graph/cut.h"
#include "stagecraft/graph/operators.h"

namespace stagecraft::graph {
namespace {

/// One node for all steps and layers; run_decompositions() makes nodes of each.
bool is_recurrent(const Node& node) {
  static constexpr std::array<std::string_view, 6> kTargets = {
      "aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu", "aten::_cudnn_rnn", "aten::mkldnn_rnn"};
  return std::any_of(kTargets.begin(), kTargets.end(), [&](std::string_view target) {
    return node.target.starts_with(target) && node.target.find("_cell") == std::string::npos;
  });
}

const Node* find_if(const Program& program, bool (*wanted)(const Node&)) {
  const auto found = std::find_if(program.nodes.begin(), program.nodes.end(), wanted);
  return found == program.nodes.end() ? nullptr : &*found;
}

bool changes_memory(const Node& node) { return !effects_of(node).changes.empty(); }
bool is_loop(const Node& node) { return node.is_control_flow(); }

}  // namespace

std::string ways_to_more_places(const Program& program) {
  std::string ways;
  if (const Node* node = find_if(program, is_recurrent)) {
    ways += ", or save program.run_decompositions(), which takes apart " + program.describe(*node) +
            " and the like, step by step";
  }
  if (const Node* node = find_if(program, changes_memory)) {
    ways += ", or save program.run_decompositions({}), in which nothing is changed in place as " +
            program.describe(*node) + " does";
  }
  if (const Node* node = find_if(program, is_loop)) {
    ways += ", or write as a loop in Python, which the export unrolls, what is never cut inside: " +
            program.describe(*node);
  }
  return ways;
}

std::string note_on_large_nodes(const Program& program, const CutProgram& cut) {
  if (cut.stages.size() < 2) return {};
  double total = 0;
  const Node* largest = nullptr;
  double most = 0;
  for (const Node& node : program.nodes) {
    const double work = work_of(program, node);
    total += work;
    if (work > most && (is_recurrent(node) || node.is_control_flow())) {
      most = work;
      largest = &node;
    }
  }
  const double share = total / static_cast<double>(cut.stages.size());
  if (largest == nullptr || most <= 1.1 * share) return {};
  return program.describe(*largest) + " has " + std::to_string(static_cast<int>(100 * most / total)) +
         " % of the work and is never cut inside: " +
         (largest->is_control_flow() ? "a loop in Python, which the export unrolls, could be cut"
                                     : "save program.run_decompositions() to cut between its steps");
}

}  // namespace stagecraft::graph
