#include "step_graphs.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "program.h"
#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {
namespace {

constexpr int kMost = 16;    // graphs; each keeps gradients of its own
constexpr int kRetakes = 3;  // before steps whose gradients are kept elsewhere stay eager
constexpr int kFailures = 2;
constexpr int kPatience = 20;  // milliseconds

/// The first line of an error: what follows is the table around the action.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

at::Tensor like(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().requires_grad(false));
}

/// How many hold a tensor. If Python has seen it, an object there holds it for as long as it lives; that counts only if
/// somebody holds the object.
std::size_t holders_of(const at::Tensor& tensor) {
  return tensor.use_count() - (tensor.unsafeGetTensorImpl()->pyobj_slot()->has_unique_reference() ? 1 : 0);
}
/// How many hold its memory.
std::size_t holders_of(const c10::Storage& storage) {
  return storage.use_count() - (storage.unsafeGetStorageImpl()->pyobj_slot()->has_unique_reference() ? 1 : 0);
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

GraphChoice::GraphChoice(const char* text) : kind_(Kind::kAuto) {
  if (std::string_view(text) == "auto") return;
  throw InvalidArgument("graph is \"" + std::string(text) + "\": write true, false or \"auto\"");
}

StepGraphs::StepGraphs(c10::Device device, const PipelineOptions& options, const std::vector<Stage>& stages,
                       ParameterStore& parameters, LossPolicy& losses)
    : device_(device),
      options_(options),
      stages_(stages),
      parameters_(parameters),
      losses_(losses),
      graphs_(make_graph_device(device)) {
  for (const Stage& stage : stages) {
    for (const auto& [name, parameter] : stage.parameters()) {
      const auto is_it = [&own = parameter](const at::Tensor& other) { return other.is_same(own); };
      if (parameter.defined() && std::none_of(trained_.begin(), trained_.end(), is_it)) trained_.push_back(parameter);
    }
  }
}

/// What is replayed at the moment must not lose its memory.
StepGraphs::~StepGraphs() {
  if (kinds_.empty()) return;
  try {
    current_stream(device_).synchronize();
  } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): the device has failed, and its memory with it
  }
}

// --- which graph ---

StepSignature StepGraphs::signature_of(const Program& program, const StepInputs& inputs) {
  StepSignature signature(device_);
  signature.add(reinterpret_cast<std::uintptr_t>(&program));
  signature.add(inputs);
  for (const Stage& stage : stages_) signature.add(stage);
  for (const double seed : losses_.seeds()) signature.add(std::uint64_t{seed == 0});
  for (std::size_t i = 0; i < trained_.size(); ++i) signature.add(std::uint64_t{gradient_of(i).defined()});
  return signature;
}

at::Tensor& StepGraphs::gradient_of(std::size_t parameter) {
  if (gradients_.empty()) {
    for (const at::Tensor& own : trained_) gradients_.push_back(&parameters_.gradient_of(own));
  }
  return *gradients_[parameter];
}

StepGraphs::Kind* StepGraphs::find(const std::vector<std::uint64_t>& key) {
  for (Kind& kind : kinds_) {
    if (kind.key == key) return &kind;
  }
  return nullptr;
}

int StepGraphs::graphs() const {
  return static_cast<int>(
      std::count_if(kinds_.begin(), kinds_.end(), [](const Kind& kind) { return kind.captured.has_value(); }));
}

/// Graphs read parameters and buffers where they were.
void StepGraphs::drop_if_moved() {
  std::vector<const void*> addresses;
  for (const Stage& stage : stages_) {
    for (const auto* tensors : {&stage.parameters(), &stage.buffers()}) {
      for (const auto& [name, tensor] : *tensors) {
        addresses.push_back(tensor.defined() && tensor.layout() == at::kStrided ? tensor.const_data_ptr() : nullptr);
      }
    }
  }
  if (addresses == addresses_) return;
  addresses_ = std::move(addresses);
  forget();
}

void StepGraphs::forget() {
  if (!kinds_.empty()) current_stream(device_).synchronize();
  kinds_.clear();
  kept_.clear();
  current_ = nullptr;
}

void StepGraphs::begin_step() {
  current_ = nullptr;
  is_learning_ = false;
  has_given_up_ = false;
  drop_if_moved();
}

bool StepGraphs::is_settled(const StepSignature& signature) {
  const std::vector<std::uint64_t>& own = signature.key();
  bool is_known = false;
  for (const Kind& kind : kinds_) {
    if (kind.key.size() != own.size() + 1 || !std::equal(own.begin(), own.end(), kind.key.begin())) continue;
    is_known = true;
    if (kind.reason.empty() && (!kind.captured || overwrites(*kind.captured))) return false;
  }
  return is_known;
}

StepGraphs::Outlook StepGraphs::prepare(StepSignature& signature, const Execution& execution) {
  signature.add(execution.others);
  current_ = find(signature.key());
  if (current_ == nullptr) {
    current_ = &kinds_.emplace_back();
    current_->key = signature.key();
  }
  if (!current_->is_learned) {
    is_learning_ = true;
    current_->arriving.clear();
    current_->obstacle.clear();
    return {Outlook::Kind::kNotNow, "the first step of its kind is not captured"};
  }
  if (current_->captured && !current_->reason.empty()) drop(*current_);
  if (current_->captured && overwrites_after_all(*current_->captured)) {
    drop(*current_);
    if (++current_->retaken == kRetakes) {
      current_->reason =
          "gradients of earlier steps are still in use, and a replay would overwrite them: clone what you keep, and "
          "zero gradients with set_to_none";
    }
  }
  if (!current_->captured && current_->reason.empty() && graphs() == kMost) {
    current_->reason = std::to_string(kMost) + " kinds of steps are captured already, and this is another: give " +
                       "batches of fewer shapes";
  }
  if (!current_->reason.empty()) {
    say(current_->reason);
    return {current_->has_failed ? Outlook::Kind::kFailed : Outlook::Kind::kNotNow, current_->reason};
  }
  if (!current_->captured) {
    const std::string why = capture(*current_, signature, execution);
    if (!why.empty()) return {Outlook::Kind::kFailed, "it cannot be captured: " + why};
  }
  return {Outlook::Kind::kReady, {}};
}

void StepGraphs::refuse(const std::string& why) {
  ++report_.eager;
  report_.last_was_replayed = false;
  report_.reason = why;
  say(why);
}

void StepGraphs::put_off(const std::string& why) {
  if (current_ != nullptr && current_->captured && !current_->captured->made.empty()) drop(*current_);
  refuse({});
  report_.reason = why;
}

void StepGraphs::give_up(const std::string& why) {
  if (!current_->reason.empty()) return refuse(current_->reason);
  has_given_up_ = true;
  if (current_->captured) drop(*current_);
  if (++current_->failures == kFailures) {
    current_->reason = why;
    current_->has_failed = true;
  }
  refuse(current_->reason);
  report_.reason = why;
}

void StepGraphs::stay_eager(const std::string& why) {
  current_->reason = why;
  current_->has_failed = true;
}

void StepGraphs::forgive() {
  if (!has_given_up_ || current_ == nullptr) return;
  --current_->failures;
  current_->reason.clear();
  current_->has_failed = false;
  has_given_up_ = false;
}

// --- what messages look like ---

void StepGraphs::learn(const Tag& tag, const Message& message) {
  CapturedMessage& known = current_->arriving.emplace_back();
  known.tag = tag;
  known.header = message.header;
  known.form = message.form;
  for (const at::Tensor& tensor : message.tensors) {
    at::Tensor& shape = known.tensors.emplace_back();
    known.needs_gradients.push_back(tensor.defined() && tensor.requires_grad());
    if (!tensor.defined()) continue;
    if (tensor.layout() != at::kStrided || tensor.device() != device_) {
      current_->obstacle = "a message has a tensor that no graph can read: sparse, or of another device";
      continue;
    }
    shape = at::empty_like(tensor, tensor.options().device(at::kMeta).requires_grad(false));
  }
}

void StepGraphs::end_learning() {
  if (is_learning_) current_->is_learned = true;
  is_learning_ = false;
}

const CapturedMessage& StepGraphs::learned(const Tag& tag) const {
  for (const CapturedMessage& known : current_->arriving) {
    if (known.tag == tag) return known;
  }
  throw InternalError("the first step of its kind has not received " + to_text(tag));
}

std::string CapturedPieces::forms() const {
  std::string all;
  for (const CapturedMessage& message : messages) {
    all += (message.is_sent ? "s " : "r ") + to_text(message.tag) + ":";
    std::string looks = message.header + "|" + (message.form ? *message.form : std::string());
    for (std::size_t t = 0; t < message.tensors.size(); ++t) {
      const at::Tensor& tensor = message.tensors[t];
      looks += '|';
      if (!tensor.defined()) continue;
      looks += c10::toString(tensor.scalar_type());
      for (const std::int64_t size : tensor.sizes()) looks += ' ' + std::to_string(size);
      looks += message.needs_gradients[t] ? "g" : "";
    }
    all += std::to_string(std::hash<std::string>()(looks)) + "\n";
  }
  return all;
}

void StepGraphs::say(const std::string& why) {
  if (why.empty() || options_.graph.is_auto()) return;
  if (std::find(said_.begin(), said_.end(), why) != said_.end()) return;
  said_.push_back(why);
  TORCH_WARN("a step runs without a graph: ", why);
}

CapturedSteps StepGraphs::report() const {
  CapturedSteps report = report_;
  report.graphs = graphs();
  report.bytes = graphs_ ? graphs_->bytes() : 0;
  return report;
}

// --- gradients ---

bool StepGraphs::Gradient::is_ours() const {
  return holders_of(tensor) == 1 && holders_of(tensor.storage()) == storage_uses;
}

bool StepGraphs::is_gradient(const c10::StorageImpl* memory) {
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const at::Tensor& gradient = gradient_of(i);
    if (gradient.has_storage() && gradient.storage().unsafeGetStorageImpl() == memory) return true;
  }
  return false;
}

StepGraphs::GradientPtr StepGraphs::known(const at::Tensor& gradient) const {
  for (const Kind& kind : kinds_) {
    if (!kind.captured) continue;
    for (const GradientPtr& other : kind.captured->after) {
      if (other && other->tensor.is_same(gradient)) return other;
    }
  }
  return nullptr;
}

bool StepGraphs::overwrites(const Captured& captured) {
  const auto are_kept = [&](const Captured& of) {
    for (std::size_t i = 0; i < of.after.size(); ++i) {
      if (!of.after[i] || of.before[i] || of.after[i]->is_ours()) continue;
      const bool is_in_use = of.number != captured.number && of.after[i]->tensor.is_same(gradient_of(i));
      if (!is_in_use) return true;
    }
    return false;
  };
  if (are_kept(captured)) return true;
  // What it adds to is another graph's gradient, and not the parameter's any more: that would be copied there.
  for (std::size_t i = 0; i < captured.before.size(); ++i) {
    const GradientPtr& before = captured.before[i];
    if (before && !before->tensor.is_same(gradient_of(i)) && !before->is_ours()) return true;
  }
  // A later capture may have its gradients in memory that this one has used and freed.
  for (const Kind& kind : kinds_) {
    if (kind.captured && kind.captured->number > captured.number && are_kept(*kind.captured)) return true;
  }
  return std::any_of(kept_.begin(), kept_.end(),
                     [&](const auto& one) { return one.second > captured.number && !one.first->is_ours(); });
}

bool StepGraphs::overwrites_after_all(const Captured& captured) {
  // Another replica, a thread of this process, has told that it has read a gradient, and may be about to let it go.
  for (int i = 0; i < kPatience && parameters_.has_replicas() && overwrites(captured); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return overwrites(captured);
}

void StepGraphs::drop(Kind& kind) {
  current_stream(device_).synchronize();
  std::erase_if(kept_, [](const auto& one) { return one.first->is_ours(); });
  for (std::size_t i = 0; i < kind.captured->after.size(); ++i) {
    const GradientPtr& made = kind.captured->after[i];
    if (made && !kind.captured->before[i] && !made->is_ours()) kept_.emplace_back(made, kind.captured->number);
  }
  for (const WeakMemory& one : kind.captured->made) uncomputed_.push_back(one);
  kind.captured.reset();
}

std::vector<at::Tensor> StepGraphs::bring_in_gradients(const Captured& captured) {
  std::vector<at::Tensor> elsewhere(trained_.size());
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    if (!captured.before[i]) continue;
    at::Tensor& gradient = gradient_of(i);
    if (gradient.is_same(captured.before[i]->tensor)) continue;
    captured.before[i]->tensor.copy_(gradient);
    elsewhere[i] = gradient;
  }
  return elsewhere;
}

void StepGraphs::bring_out_gradients(const Captured& captured, const std::vector<at::Tensor>& elsewhere) {
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    at::Tensor& gradient = gradient_of(i);
    if (elsewhere[i].defined()) {
      elsewhere[i].copy_(captured.after[i]->tensor);
      gradient = elsewhere[i];
    } else if (captured.after[i]) {
      gradient = captured.after[i]->tensor;
    }
  }
}

// --- capture and replay ---

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

const std::vector<WeakMemory>& StepGraphs::uncomputed() {
  std::erase_if(uncomputed_, [](const WeakMemory& memory) { return memory.expired(); });
  return uncomputed_;
}

/// Losses, outputs and gradients.
bool StepGraphs::is_result(const Captured& made, const c10::StorageImpl* memory) {
  const auto is_it = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == memory;
  };
  bool found = std::any_of(made.losses.begin(), made.losses.end(), is_it);
  for (const GradientPtr& gradient : made.after) found = found || (gradient && is_it(gradient->tensor));
  for (const Value& output : made.outputs) {
    output.for_each_tensor([&](const at::Tensor& tensor) { found = found || is_it(tensor); });
  }
  return found;
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
    if (!before) before = std::make_shared<Gradient>(Gradient{like(gradient), 0});
  }
  return made;
}

std::string StepGraphs::capture(Kind& kind, const StepSignature& signature, const Execution& execution) {
  if (!kind.obstacle.empty()) return kind.obstacle;
  Captured made;
  try {
    made = with_memory(signature);
  } catch (const c10::Error& error) {
    return first_line(error.what_without_backtrace());
  }
  StepInputs inputs = signature.with(execution.inputs, made.inputs);
  const ValueDict keywords = signature.with(*execution.inputs.loss_keywords, made.inputs);
  inputs.loss_keywords = &keywords;
  std::vector<at::Tensor> originals;  // gradients before the step
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    originals.push_back(gradient_of(i));
    if (made.before[i]) gradient_of(i) = made.before[i]->tensor;
  }
  const auto capture_piece = [&](const std::function<void()>& work) {
    const GraphRandomScope random(*made.random);
    made.pieces.graphs.push_back(graphs_->capture(work, /*makes_room=*/made.pieces.graphs.empty()));
  };
  std::string why;
  const std::unordered_set<const c10::StorageImpl*> known = kept_by_others(made);
  CaptureMemory memory(device_.type(), [&](const c10::StorageImpl* one) { return known.contains(one); });
  losses_.begin_capture(inputs, made.seeds);
  try {
    const at::AutoGradMode training(true);
    execution.capture(inputs, made.pieces, capture_piece);
  } catch (const c10::Error& error) {
    why = first_line(error.what_without_backtrace());
  } catch (const std::exception& error) {
    why = first_line(error.what());
  }
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
      after = std::make_shared<Gradient>(Gradient{gradient, 0});
      if (gradient.layout() != at::kStrided && why.empty()) why = "a gradient is sparse";
    }
    gradient = originals[i];
    // With masters, a backward that has failed leaves gradients of the module's own.
    if (&gradient != &trained_[i].mutable_grad()) trained_[i].mutable_grad().reset();
  }
  originals.clear();
  made.given = memory.take_given();
  for (const WeakMemory& lost : uncomputed()) {
    const auto is_it = [&](const c10::Storage& one) { return one.unsafeGetStorageImpl() == lost._unsafe_get_target(); };
    if (std::any_of(made.given.begin(), made.given.end(), is_it) && why.empty()) {
      why = "a module uses a tensor that it has made during a capture that failed";
    }
  }
  if (!why.empty()) {
    made = Captured();
    for (const WeakMemory& one : memory.made()) uncomputed_.push_back(one);
    return why;
  }
  made.made = memory.made();
  std::erase_if(made.given, [&](const c10::Storage& one) { return is_result(made, one.unsafeGetStorageImpl()); });
  std::erase_if(made.made, [&](const WeakMemory& one) { return is_result(made, one._unsafe_get_target()); });
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
  if (!captured.made.empty()) captured.left = move_out(std::exchange(captured.made, {}));
  ++report_.replayed;
  report_.last_was_replayed = true;
  report_.reason.clear();
}

}  // namespace stagecraft
