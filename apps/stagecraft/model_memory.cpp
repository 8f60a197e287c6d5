#include "model_memory.h"

#include "stagecraft/graph/operators.h"
#include "stagecraft/graph/report.h"

namespace stagecraft::cli {
namespace {

/// Autograd saves most of what operators take and make; which of it is known only to the operators.
double made_bytes(const graph::Program& program, const graph::Node& node) {
  if (node.is_control_flow()) {
    return graph::over_bodies(program, node, [&](const graph::Node& inner) { return made_bytes(program, inner); });
  }
  const bool drops_out = node.target.find("dropout") != std::string::npos;  // a view only in evaluation
  const bool is_view = !graph::effects_of(node).shares.empty() && !drops_out;
  if (is_view || graph::changes_first_argument(node.target) || graph::reads_size(node)) return 0;
  double bytes = 0;
  for (const graph::ValueId value : node.makes()) {
    if (value == graph::kNoValue || !program.values[static_cast<std::size_t>(value)].is_tensor()) continue;
    bytes += static_cast<double>(graph::bytes_of(program, value));
  }
  return bytes;
}

void add_parameter(TrainingBytes& bytes, const graph::Input& input, const OptimizerState& optimizer) {
  if (input.kind != graph::Input::Kind::kParameter) return;
  const auto own = static_cast<double>(input.stored.bytes());
  bytes.parameters += own;
  if (!input.stored.requires_grad) return;
  bytes.gradients += own;
  bytes.optimizer += optimizer.numbers() * own;
}

}  // namespace

TrainingBytes training_bytes(const graph::Program& program, const graph::StageGraph& stage,
                             const OptimizerState& optimizer) {
  TrainingBytes bytes;
  for (const int input : stage.loads) {
    add_parameter(bytes, program.inputs[static_cast<std::size_t>(input)], optimizer);
  }
  for (const graph::ValueId value : stage.receives) {
    if (value != graph::kNoValue) bytes.inputs += static_cast<double>(graph::bytes_of(program, value));
  }
  bytes.activations = bytes.inputs;
  for (const int node : stage.nodes) {
    bytes.activations += made_bytes(program, program.nodes[static_cast<std::size_t>(node)]);
  }
  return bytes;
}

TrainingBytes training_bytes(const graph::Program& program, const OptimizerState& optimizer) {
  TrainingBytes bytes;
  for (const graph::Input& input : program.inputs) {
    add_parameter(bytes, input, optimizer);
    if (input.kind == graph::Input::Kind::kUser && input.value != graph::kNoValue) {
      bytes.inputs += static_cast<double>(graph::bytes_of(program, input.value));
    }
  }
  bytes.activations = bytes.inputs;
  for (const graph::Node& node : program.nodes) bytes.activations += made_bytes(program, node);
  return bytes;
}

}  // namespace stagecraft::cli
