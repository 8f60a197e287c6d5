// Captures a step, and replays it.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>

#include "capture_memory.h"
#include "stagecraft/core/error.h"
#include "stagecraft/core/text.h"
#include "stagecraft/transport/no_messages.h"
#include "step_graphs.h"

namespace stagecraft {
namespace {

/// What `work` says, or the first line of the error that it throws, which the table around the action follows. An
/// interruption goes to `interruption` too.
std::string why_not(std::exception_ptr& interruption, const std::function<std::string()>& work) {
  std::string why;
  try {
    return work();
  } catch (const c10::Error& error) {
    why = first_line(error.what_without_backtrace());
  } catch (const std::exception& error) {
    why = first_line(error.what());
    if (is_interruption(std::current_exception())) interruption = std::current_exception();
  }
  return why.empty() ? "an error without a text" : why;
}

at::Tensor like(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().requires_grad(false));
}

/// A copy that the caller may keep.
std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& losses) {
  const auto is_alike = [&](const at::Tensor& loss) {
    return loss.defined() && loss.sizes() == losses.front().sizes() &&
           loss.scalar_type() == losses.front().scalar_type();
  };
  if (!losses.empty() && std::all_of(losses.begin(), losses.end(), is_alike)) return at::stack(losses).unbind();
  std::vector<at::Tensor> copies;
  for (const at::Tensor& loss : losses) copies.push_back(loss.defined() ? loss.clone() : loss);
  return copies;
}

}  // namespace

/// What differs from step to step, except gradients and random numbers.
void StepGraphs::bring_in(CapturedStep& captured, const StepSignature& signature) {
  if (!captured.inputs.empty()) at::_foreach_copy_(captured.inputs, signature.tensors(), /*non_blocking=*/true);
  if (captured.seeds.numel() > 0) upload(losses_.seeds(), captured.seeds);
}

void StepGraphs::bring_out(CapturedStep& captured, const Execution& execution) {
  losses_.set_losses(copies_of(captured.losses));
  for (std::size_t m = 0; m < captured.outputs.size(); ++m) execution.outputs[m] = copy_of(captured.outputs[m]);
}

CapturedStep StepGraphs::with_memory(const StepSignature& signature) {
  CapturedStep made;
  made.random = std::make_unique<StreamSeeds>(*graphs_, device_);
  for (const at::Tensor& tensor : signature.tensors()) made.inputs.push_back(like(tensor));
  made.seeds =
      at::zeros({static_cast<std::int64_t>(losses_.seeds().size())}, at::TensorOptions(at::kDouble).device(device_));
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const at::Tensor& gradient = gradient_of(i);
    GradientPtr& before = made.before.emplace_back();
    if (!gradient.defined()) continue;
    before = known(gradient);
    if (!before) before = std::make_shared<CapturedGradient>(like(gradient));
  }
  return made;
}

std::string StepGraphs::capture(Kind& kind, const StepSignature& signature, const Execution& execution) {
  if (!kind.obstacle.empty()) return kind.obstacle;
  CapturedStep made;
  Memories remembered;  // put_back holds it
  std::exception_ptr interruption;
  const std::string obstacle = why_not(interruption, [&] {
    made = with_memory(signature);
    for (const Stage& stage : stages_) {
      if (!stage.options().remember) continue;
      Remembered& kept = made.before_capture.emplace_back(stage.options().remember());
      for (const at::Tensor& tensor : std::exchange(kept.tensors, {})) add_memory_of(tensor, remembered);
    }
    return std::string();
  });
  if (interruption) std::rethrow_exception(interruption);
  if (!obstacle.empty()) return obstacle;
  StepInputs inputs = signature.with(execution.inputs, made.inputs);
  const ValueDict& given = *execution.inputs.loss_keywords;
  const ValueDict keywords = losses_.has_losses() ? signature.with(given, made.inputs) : given;
  inputs.loss_keywords = &keywords;
  std::vector<at::Tensor> gradients_before = put_in_gradients(made);
  const auto capture_piece = [&](const std::function<void()>& work) {
    const GraphRandomScope random(*made.random);
    const NoMessages alone(
        "a stage or a loss sends, receives or takes part in a collective, which every step has to do");
    made.pieces.graphs.push_back(graphs_->capture(work, /*makes_room=*/made.pieces.graphs.empty()));
  };
  std::vector<std::uint32_t> versions;
  std::vector<std::size_t> holders;
  for (const at::Tensor& input : made.inputs) {
    versions.push_back(input._version());
    holders.push_back(holders_of(input.storage()));
  }
  const Memories known = kept_by_others(made);
  CaptureMemory memory(
      device_.type(), [&] { return graphs_->is_capturing(); },
      [&](const c10::StorageImpl* one) { return known.contains(one); });
  losses_.begin_capture(inputs, made.seeds);
  std::string why = why_not(interruption, [&] {
    const at::AutoGradMode training(true);
    execution.capture(inputs, made.pieces, capture_piece);
    return std::string();
  });
  made.losses = losses_.end_capture(execution.inputs);
  made.outputs = std::exchange(execution.outputs, std::vector<Value>(execution.outputs.size()));
  execution.clear();
  const std::string about_gradients = take_gradients(made, gradients_before);
  if (why.empty()) why = about_gradients;
  gradients_before.clear();
  if (memory.has_unknown_leaves()) {
    memory.reset_unknown_leaves();
    if (why.empty()) {
      why = "it trains a tensor that is no parameter of a stage: make it one, for example of the last stage";
    }
  }
  bool keeps_inputs = false;
  for (std::size_t i = 0; i < versions.size(); ++i) {
    keeps_inputs = keeps_inputs || holders_of(made.inputs[i].storage()) > holders[i];
    if (made.inputs[i]._version() == versions[i]) continue;
    made.changed_inputs.push_back(i);
    if (signature.overlaps(i) && why.empty()) {
      why = "a stage changes an input in place that shares memory with another input or target: clone one of them";
    }
  }
  if (why.empty()) {
    why = why_not(interruption, [&] { return share_memory(kind, made, memory, remembered, keeps_inputs); });
  }
  if (!why.empty()) {
    std::vector<Remembered> before_capture = std::move(made.before_capture);
    std::vector<WeakMemory> lost = memory.made();
    if (made.given.empty()) made.given = memory.take_given();
    made.made = lost;
    const UsedMemory used = used_memory(made);
    for (const at::Tensor& input : made.inputs) lost.push_back(input.storage().getWeakStorageImpl());
    made = CapturedStep();
    inputs = StepInputs();
    leave_uncomputed(std::move(before_capture), used, lost);
    fill_with_nan(lost);
    if (interruption) std::rethrow_exception(interruption);
    return why;
  }
  for (const GradientPtr& after : made.after) {
    if (after && after->storage_uses == 0) after->storage_uses = holders_of(after->tensor.storage());
  }
  made.number = ++captures_;
  kind.captured = std::move(made);
  return {};
}

void StepGraphs::replay(const StepSignature& signature, const Execution& execution) {
  CapturedStep& captured = *current_->captured;
  const at::NoGradGuard no_graph;
  bring_in(captured, signature);
  captured.random->set_step(options_.seed, execution.inputs.number);
  const std::vector<at::Tensor> elsewhere = bring_in_gradients(captured);
  execution.replay(captured.pieces);
  bring_out_gradients(captured, elsewhere);
  bring_out(captured, execution);
  for (const std::size_t i : captured.changed_inputs) signature.tensors()[i].copy_(captured.inputs[i]);
  for (const MovedOut& one : captured.moved_out) one.follow();
  // What the capture itself has left is still there, unless modules got back what they had before.
  const bool has_put = captured.before_capture.empty() && captured.put_again();
  if (!captured.is_settled) {
    settle(captured);
  } else if (has_put) {
    note_replaced(/*by_modules=*/true);
  }
  ++current_->replayed;
  ++report_.replayed;
  report_.last_was_replayed = true;
  report_.reason.clear();
}

}  // namespace stagecraft
