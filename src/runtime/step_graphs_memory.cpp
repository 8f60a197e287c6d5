// Memory that captured steps share with modules and their callers.

#include <algorithm>
#include <utility>

#include "capture_memory.h"
#include "stagecraft/transport/message.h"
#include "step_graphs.h"

namespace stagecraft {
namespace {

template <typename Visit>
void for_each_parameter_and_buffer(const std::vector<Stage>& stages, const Visit& visit) {
  for (const Stage& stage : stages) {
    for (const auto* tensors : {&stage.parameters(), &stage.buffers()}) {
      for (const auto& [name, tensor] : *tensors) visit(tensor);
    }
  }
}

}  // namespace

/// Parameters and buffers belong to the modules; `drop_if_moved` sees when they have others. Gradients are counted.
Memories StepGraphs::kept_by_others(const CapturedStep& made) {
  Memories all;
  const auto add = [&](const at::Tensor& tensor) { add_memory_of(tensor, all); };
  for_each_parameter_and_buffer(stages_, add);
  for (const at::Tensor& input : made.inputs) add(input);
  add(made.seeds);
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    add(gradient_of(i));
    if (made.before[i]) add(made.before[i]->tensor);
  }
  return all;
}

/// Finds out what graphs share with modules. `remembered`: what modules kept before the capture. `keeps_inputs`: they
/// keep some of the step's inputs now. Returns why they cannot be replayed; empty if they can.
std::string StepGraphs::share_memory(Kind& kind, CapturedStep& made, CaptureMemory& memory, const Memories& remembered,
                                     bool keeps_inputs) {
  Memories results;
  const auto add = [&](const at::Tensor& tensor) { add_memory_of(tensor, results); };
  for (const GradientPtr& after : made.after) {
    if (after) add(after->tensor);
  }
  for (const at::Tensor& loss : made.losses) add(loss);
  for (const Value& output : made.outputs) output.for_each_tensor(add);
  made.numbers = memory.take_numbers();
  made.given = memory.take_given();
  made.tensors = memory.take_tensors();
  std::erase_if(made.given, [&](const GivenMemory& one) { return results.contains(one.memory()); });
  made.made = memory.made();
  made.used = used_memory(made);
  std::erase_if(made.made, [&](const WeakMemory& one) { return results.contains(one._unsafe_get_target()); });
  for (const WeakMemory& lost : uncomputed()) {
    const auto is_it = [&](const GivenMemory& one) { return one.memory() == lost._unsafe_get_target(); };
    if (std::any_of(made.given.begin(), made.given.end(), is_it)) {
      return "a module uses a tensor that it has made during a capture that failed";
    }
  }
  Memories kept_now;
  for (const Stage& stage : stages_) {
    if (!stage.options().remember) continue;
    const Remembered now = stage.options().remember();
    for (const at::Tensor& tensor : now.tensors) add_memory_of(tensor, kept_now);
  }
  const auto was_let_go = [&](const GivenMemory& one) {
    return remembered.contains(one.memory()) ? !kept_now.contains(one.memory()) : one.was_let_go();
  };
  // What was read has gone, and something new has stayed: the next step would go on from that.
  const bool keeps_new = keeps_inputs || !made.made.empty();
  kind.carries = keeps_new && std::any_of(made.given.begin(), made.given.end(), was_let_go);
  for (const Remembered& one : made.before_capture) {
    if (!one.compare) continue;
    made.kept.push_back(one.compare(made.used));
    kind.carries = kind.carries || made.kept.back().carries;
  }
  if (kind.carries) {
    return "a module replaces a tensor that it carries from step to step: let it change the tensor in place";
  }
  for (GivenMemory& one : made.given) one.is_number = one.is_number && !was_let_go(one);
  // Compiled code has memory of which no operation tells. What modules have taken away themselves, `compare` has told.
  for (GivenMemory& one : made.given) one.is_inner = one.is_inner || (!made.kept.empty() && one.was_let_go());
  return {};
}

/// What is read is what there was before, and parameters and buffers; what is made, also the inputs that graphs have.
UsedMemory StepGraphs::used_memory(const CapturedStep& captured) const {
  UsedMemory used;
  for (const GivenMemory& one : captured.given) used.read.push_back(one.storage->data());
  for_each_parameter_and_buffer(stages_, [&](const at::Tensor& tensor) {
    if (const c10::StorageImpl* memory = memory_of(tensor)) used.read.push_back(memory->data());
  });
  for (const at::Tensor& input : captured.inputs) used.made.push_back(input.storage().data());
  for (const WeakMemory& weak : captured.made) {
    if (const auto memory = weak.lock()) used.made.push_back(memory->data());
  }
  return used;
}

const std::vector<WeakMemory>& StepGraphs::uncomputed() {
  std::erase_if(uncomputed_, [](const WeakMemory& memory) { return memory.expired(); });
  return uncomputed_;
}

/// What a capture has made is not computed: modules get back what they had, where they can.
void StepGraphs::leave_uncomputed(std::vector<Remembered> before_capture, const UsedMemory& used,
                                  const std::vector<WeakMemory>& made) {
  uncomputed_.insert(uncomputed_.end(), made.begin(), made.end());
  for (const Remembered& one : before_capture) one.put_back(used);
}

void StepGraphs::leave_uncomputed(CapturedStep& captured) {
  if (captured.is_settled) return;
  leave_uncomputed(std::exchange(captured.before_capture, {}), captured.used, captured.made);
}

void StepGraphs::abandon() {
  if (current_ == nullptr || !current_->captured) return;
  CapturedStep& captured = *current_->captured;
  captured.is_abandoned = captured.is_abandoned || !captured.is_settled;
  leave_uncomputed(captured);
}

/// After the first replay: what modules have kept is computed.
void StepGraphs::settle(CapturedStep& captured) {
  captured.is_settled = true;
  for (const WeakMemory& one : captured.made) {
    std::erase_if(uncomputed_,
                  [&](const WeakMemory& lost) { return lost._unsafe_get_target() == one._unsafe_get_target(); });
  }
  captured.moved_out = move_out(std::exchange(captured.made, {}));
  captured.before_capture.clear();
  captured.used = {};
  note_replaced(/*by_modules=*/true);
}

void StepGraphs::note_replaced(bool by_modules) {
  for (Kind& kind : kinds_) {
    if (kind.captured) kind.captured->note_replaced(by_modules);
  }
}

std::unique_ptr<CaptureMemory> StepGraphs::watch_eager(const StepInputs& inputs) {
  if (!is_checking_ || !current_->captured) return nullptr;
  known_.clear();
  const auto add = [&](const at::Tensor& tensor) { add_memory_of(tensor, known_); };
  inputs.for_each_tensor(add);
  for_each_parameter_and_buffer(stages_, add);
  for (const MovedOut& one : current_->captured->moved_out) known_.insert(one.owner._unsafe_get_target());
  return std::make_unique<CaptureMemory>(
      device_.type(), [] { return true; },
      [this](const c10::StorageImpl* memory) { return known_.contains(memory) || is_gradient(memory); });
}

void StepGraphs::note_received(const Message& message) {
  if (!is_checking_) return;
  for (const at::Tensor& tensor : message.tensors) add_memory_of(tensor, known_);
}

}  // namespace stagecraft
