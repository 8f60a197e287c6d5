// Captures a step, finds out what of it a replay would not do again, and replays it.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>

#include "stagecraft/core/error.h"
#include "stagecraft/transport/no_messages.h"
#include "step_graphs.h"

namespace stagecraft {
namespace {

/// The first line of an error: what follows is the table around the action.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// What `work` says, or the error that it throws. An interruption goes to `interruption` too.
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

void add_memory_of(const std::vector<at::Tensor>& tensors, std::unordered_set<const c10::StorageImpl*>& all) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.has_storage()) all.insert(tensor.storage().unsafeGetStorageImpl());
  }
}

bool is_lost_number(const GivenMemory& one) { return one.is_number && one.was_let_go(); }

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
void StepGraphs::bring_in(Captured& captured, const StepSignature& signature) {
  if (!captured.inputs.empty()) at::_foreach_copy_(captured.inputs, signature.tensors(), /*non_blocking=*/true);
  if (captured.seeds.numel() > 0) upload(losses_.seeds(), captured.seeds);
}

void StepGraphs::bring_out(Captured& captured, const Execution& execution) {
  losses_.set_losses(copies_of(captured.losses));
  for (std::size_t m = 0; m < captured.outputs.size(); ++m) execution.outputs[m] = copy_of(captured.outputs[m]);
}

/// Parameters and buffers belong to the modules; `drop_if_moved` sees when they have others. Gradients are counted.
std::unordered_set<const c10::StorageImpl*> StepGraphs::kept_by_others(const Captured& made) {
  std::unordered_set<const c10::StorageImpl*> all;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) all.insert(tensor.storage().unsafeGetStorageImpl());
  };
  for (const Stage& stage : stages_) {
    for (const auto* tensors : {&stage.parameters(), &stage.buffers()}) {
      for (const auto& [name, tensor] : *tensors) add(tensor);
    }
  }
  for (const at::Tensor& input : made.inputs) add(input);
  add(made.seeds);
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    add(gradient_of(i));
    if (made.before[i]) add(made.before[i]->tensor);
  }
  return all;
}

/// What a capture has made is not computed: modules get back what they had, where they can.
void StepGraphs::leave_uncomputed(std::vector<Remembered> before_capture, const UsedMemory& used,
                                  const std::vector<WeakMemory>& made) {
  uncomputed_.insert(uncomputed_.end(), made.begin(), made.end());
  for (const Remembered& one : before_capture) one.put_back(used);
}

void StepGraphs::leave_uncomputed(Captured& captured) {
  if (captured.is_settled) return;
  leave_uncomputed(std::exchange(captured.before_capture, {}), captured.used, captured.made);
}

void StepGraphs::abandon() {
  if (current_ == nullptr || !current_->captured) return;
  Captured& captured = *current_->captured;
  captured.is_abandoned = captured.is_abandoned || !captured.is_settled;
  leave_uncomputed(captured);
}

bool StepGraphs::Captured::has_made_again(const std::vector<WeakMemory>& made_since) {
  for (const KeptSince& one : kept) {
    if (one.has_made_again && !one.has_made_again()) return false;
  }
  for (GivenMemory& one : given) {
    if (!one.is_replaced || one.is_remade) continue;
    one.is_remade = is_among(*one.storage, made_since);
    if (!one.is_remade) return false;
  }
  return true;
}

bool StepGraphs::Captured::lacks_what_it_read() const {
  const auto was_let_go = [](const HostNumber& one) { return one.was_let_go(); };
  return reads_replaced || std::any_of(numbers.begin(), numbers.end(), was_let_go) ||
         std::any_of(given.begin(), given.end(), is_lost_number);
}

const char* StepGraphs::Captured::why_outdated() const {
  if (std::any_of(numbers.begin(), numbers.end(), [](const HostNumber& one) { return one.has_changed(); }) ||
      std::any_of(given.begin(), given.end(), is_lost_number)) {
    return "it reads a number from a tensor that is on the CPU and changes, or that is replaced by another: keep it in "
           "one tensor on the device, and change that in place";
  }
  if (std::any_of(given.begin(), given.end(), [](const GivenMemory& one) { return one.has_moved(); }) ||
      std::any_of(tensors.begin(), tensors.end(), [](const GivenTensor& one) { return one.has_changed(); })) {
    return "it reads a tensor that has another shape or other memory now: keep both, and change it in place";
  }
  if (std::any_of(tensors.begin(), tensors.end(), [](const GivenTensor& one) { return one.is_trained(); })) {
    return "it reads a tensor that is trained now and was not before";
  }
  if (is_abandoned) return "its first replay has failed";
  if (reads_replaced) {
    return "it reads a tensor that is replaced by another between steps: keep one tensor on the device and change it in "
           "place, or give it as an input";
  }
  if (std::any_of(moved_out.begin(), moved_out.end(), [](const MovedOut& one) { return !one.has_owner(); })) {
    return "a module leaves a tensor for others to read, which evaluations, steps of other shapes or the caller "
           "replace: let the module copy it into a buffer";
  }
  return nullptr;
}

const std::vector<WeakMemory>& StepGraphs::uncomputed() {
  std::erase_if(uncomputed_, [](const WeakMemory& memory) { return memory.expired(); });
  return uncomputed_;
}

/// Finds out what graphs share with modules. `remembered`: what modules kept before the capture. `keeps_inputs`: they
/// keep some of the step's inputs now. Returns why they cannot be replayed; empty if they can.
std::string StepGraphs::share_memory(Kind& kind, Captured& made, CaptureMemory& memory, const Memories& remembered,
                                     bool keeps_inputs) {
  Memories results;
  for (const GradientPtr& after : made.after) {
    if (after) add_memory_of({after->tensor}, results);
  }
  for (const at::Tensor& loss : made.losses) add_memory_of({loss}, results);
  for (const Value& output : made.outputs) {
    output.for_each_tensor([&](const at::Tensor& tensor) { add_memory_of({tensor}, results); });
  }
  const auto memory_of = [](const GivenMemory& one) { return one.storage->unsafeGetStorageImpl(); };
  made.numbers = memory.take_numbers();
  made.given = memory.take_given();
  made.tensors = memory.take_tensors();
  std::erase_if(made.given, [&](const GivenMemory& one) { return results.contains(memory_of(one)); });
  made.made = memory.made();
  made.used = used_memory(made);
  std::erase_if(made.made, [&](const WeakMemory& one) { return results.contains(one._unsafe_get_target()); });
  for (const WeakMemory& lost : uncomputed()) {
    const auto is_it = [&](const GivenMemory& one) { return memory_of(one) == lost._unsafe_get_target(); };
    if (std::any_of(made.given.begin(), made.given.end(), is_it)) {
      return "a module uses a tensor that it has made during a capture that failed";
    }
  }
  Memories kept_now;
  for (const Stage& stage : stages_) {
    if (stage.options().remember) add_memory_of(stage.options().remember().tensors, kept_now);
  }
  const auto was_let_go = [&](const GivenMemory& one) {
    return remembered.contains(memory_of(one)) ? !kept_now.contains(memory_of(one)) : one.was_let_go();
  };
  // What was read has gone, and something new has stayed: the next step would go on from that.
  const bool keeps_new = keeps_inputs || !made.made.empty();
  kind.carries = keeps_new && std::any_of(made.given.begin(), made.given.end(), was_let_go);
  for (const Remembered& one : made.before_capture) {
    if (!one.compare) continue;
    made.kept.push_back(one.compare(made.used));
    kind.carries = kind.carries || made.kept.back().carries;
  }
  if (kind.carries)
    return "a module replaces a tensor that it carries from step to step: let it change the tensor in place";
  for (GivenMemory& one : made.given) one.is_number = one.is_number && !was_let_go(one);
  // Compiled code has memory of which no operation tells. What modules have taken away themselves, `compare` has told.
  for (GivenMemory& one : made.given) one.is_inner = one.is_inner || (!made.kept.empty() && one.was_let_go());
  return {};
}

/// What is read is what there was before, and parameters and buffers; what is made, also the inputs that graphs have.
UsedMemory StepGraphs::used_memory(const Captured& captured) const {
  UsedMemory used;
  for (const GivenMemory& one : captured.given) used.read.push_back(one.storage->data());
  for (const Stage& stage : stages_) {
    for (const auto* tensors : {&stage.parameters(), &stage.buffers()}) {
      for (const auto& [name, tensor] : *tensors) {
        if (tensor.defined() && tensor.has_storage()) used.read.push_back(tensor.storage().data());
      }
    }
  }
  for (const at::Tensor& input : captured.inputs) used.made.push_back(input.storage().data());
  for (const WeakMemory& weak : captured.made) {
    if (const auto memory = weak.lock()) used.made.push_back(memory->data());
  }
  return used;
}

StepGraphs::Captured StepGraphs::with_memory(const StepSignature& signature) {
  Captured made;
  made.random = std::make_unique<StreamSeeds>(*graphs_, device_);
  for (const at::Tensor& tensor : signature.tensors()) made.inputs.push_back(like(tensor));
  made.seeds =
      at::zeros({static_cast<std::int64_t>(losses_.seeds().size())}, at::TensorOptions(at::kDouble).device(device_));
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const at::Tensor& gradient = gradient_of(i);
    GradientPtr& before = made.before.emplace_back();
    if (!gradient.defined()) continue;
    before = known(gradient);
    if (!before) before = std::make_shared<Gradient>(like(gradient));
  }
  return made;
}

std::string StepGraphs::capture(Kind& kind, const StepSignature& signature, const Execution& execution) {
  if (!kind.obstacle.empty()) return kind.obstacle;
  Captured made;
  Memories remembered;  // put_back holds it
  std::exception_ptr interruption;
  const std::string obstacle = why_not(interruption, [&] {
    made = with_memory(signature);
    for (const Stage& stage : stages_) {
      if (!stage.options().remember) continue;
      Remembered& kept = made.before_capture.emplace_back(stage.options().remember());
      add_memory_of(std::exchange(kept.tensors, {}), remembered);
    }
    return std::string();
  });
  if (interruption) std::rethrow_exception(interruption);
  if (!obstacle.empty()) return obstacle;
  StepInputs inputs = signature.with(execution.inputs, made.inputs);
  const ValueDict& given = *execution.inputs.loss_keywords;
  const ValueDict keywords = losses_.has_losses() ? signature.with(given, made.inputs) : given;
  inputs.loss_keywords = &keywords;
  std::vector<at::Tensor> originals;  // gradients before the step
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    originals.push_back(gradient_of(i));
    if (made.before[i]) gradient_of(i) = made.before[i]->tensor;
  }
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
  const std::unordered_set<const c10::StorageImpl*> known = kept_by_others(made);
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
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    at::Tensor& gradient = gradient_of(i);
    GradientPtr& after = made.after.emplace_back();
    if (made.before[i]) {
      after = made.before[i];
      if (!gradient.is_same(after->tensor) && why.empty()) why = "a gradient was replaced during the step";
    } else if (gradient.defined()) {
      after = std::make_shared<Gradient>(gradient);
      if (gradient.layout() != at::kStrided && why.empty()) why = "a gradient is sparse";
    }
    gradient = originals[i];
    // With masters, a backward that has failed leaves gradients of the module's own.
    if (&gradient != &trained_[i].mutable_grad()) trained_[i].mutable_grad().reset();
  }
  originals.clear();
  if (memory.has_unknown_leaves()) {
    memory.reset_unknown_leaves();
    if (why.empty()) {
      why = "it trains a tensor that is no parameter of a stage: make it one, for example of the last stage";
    }
  }
  bool keeps_inputs = false;
  for (std::size_t i = 0; i < versions.size(); ++i) {
    if (made.inputs[i]._version() != versions[i]) made.changed_inputs.push_back(i);
    keeps_inputs = keeps_inputs || holders_of(made.inputs[i].storage()) > holders[i];
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
    made = Captured();
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
  Captured& captured = *current_->captured;
  const at::NoGradGuard no_graph;
  bring_in(captured, signature);
  captured.random->set_step(options_.seed, execution.inputs.number);
  const std::vector<at::Tensor> elsewhere = bring_in_gradients(captured);
  execution.replay(captured.pieces);
  bring_out_gradients(captured, elsewhere);
  bring_out(captured, execution);
  for (const std::size_t i : captured.changed_inputs) signature.tensors()[i].copy_(captured.inputs[i]);
  for (const MovedOut& one : captured.moved_out) one.follow();
  if (!captured.is_settled) {
    settle(captured);
  } else if (put_again(captured)) {
    note_replaced(/*by_modules=*/true);
  }
  ++current_->replayed;
  ++report_.replayed;
  report_.last_was_replayed = true;
  report_.reason.clear();
}

/// What modules would have put in the place of something else. Returns whether there was anything.
bool StepGraphs::put_again(const Captured& captured) {
  bool any = false;
  for (const KeptSince& one : captured.kept) {
    if (!one.put_again) continue;
    one.put_again();
    any = true;
  }
  return any;
}

/// After the first replay: what modules have kept is computed.
void StepGraphs::settle(Captured& captured) {
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

}  // namespace stagecraft
