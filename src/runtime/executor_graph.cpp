// Steps that are captured as graphs: what the executor does around them.

#include <algorithm>

#include "executor.h"

namespace stagecraft {

/// Empty if the step may be captured.
std::string Executor::why_eager() const {
  const auto is_set = [](const auto& handler) { return !!handler; };
  if (std::any_of(handlers_.begin(), handlers_.end(), is_set)) {
    return "a handler runs between two actions (Pipeline::on)";
  }
  if (record_) return "a timeline is recorded";
  const auto waits = [](const Instruction& instruction) { return instruction.peer.value >= 0; };
  if (std::any_of(program_->instructions.begin(), program_->instructions.end(), waits)) {
    return "it waits for messages of other ranks: only pipelines of one rank are captured";
  }
  if (!parameters_.is_alone()) return "replicas share the gradients: only pipelines without replicas are captured";
  return {};
}

/// UNSHARD moves before the graph, REDUCE_GRAD after it: they may wait for other threads. Returns false when the step has
/// to run eagerly.
bool Executor::run_as_graph(const StepInputs& inputs) {
  if (!graphs_ || !inputs.training()) return false;
  if (const std::string why = why_eager(); !why.empty()) {
    graphs_->refuse(why);
    return false;
  }
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) parameters_.require(stage);
  const auto issue = [&](const StepInputs& fixed) {
    is_capturing_ = true;
    inputs_ = &fixed;
    run_instructions();
  };
  const auto clear = [&] {
    is_capturing_ = false;
    inputs_ = &inputs;
    drop_flights();
  };
  if (!graphs_->run({*program_, inputs, issue, clear, outputs_.outputs})) return false;
  for (const Instruction& instruction : program_->instructions) {
    if (instruction.action.kind() == ActionKind::kReduceGrad) parameters_.reduce_gradients(instruction.stage);
  }
  return true;
}

}  // namespace stagecraft
