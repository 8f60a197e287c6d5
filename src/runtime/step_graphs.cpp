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
  if (captured_.empty()) return;
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

StepGraphs::Captured* StepGraphs::find(const std::vector<std::uint64_t>& key) {
  for (Captured& own : captured_) {
    if (own.key == key) return &own;
  }
  return nullptr;
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
  if (!captured_.empty()) current_stream(device_).synchronize();
  captured_.clear();
}

bool StepGraphs::run(StepSignature signature, const Execution& execution) {
  failed_ = nullptr;
  drop_if_moved();
  signature.add(execution.others);
  Captured* captured = find(signature.key());
  if (captured == nullptr) {
    captured_.emplace_back().key = signature.key();
    refuse("");
    report_.reason = "the first step of its kind is not captured";
    return false;
  }
  if (!captured->graphs.empty() && is_held_elsewhere(*captured)) {
    current_stream(device_).synchronize();
    Captured fresh;
    fresh.key = std::move(captured->key);
    fresh.retaken = captured->retaken + 1;
    *captured = std::move(fresh);
    if (captured->retaken == kRetakes) {
      captured->reason =
          "gradients of earlier steps are still in use, and a replay would overwrite them: clone what you keep, and "
          "zero gradients with set_to_none";
    }
  }
  const auto has_graph = [](const Captured& own) { return !own.graphs.empty(); };
  if (captured->graphs.empty() && captured->reason.empty() &&
      std::count_if(captured_.begin(), captured_.end(), has_graph) == kMost) {
    captured->reason = std::to_string(kMost) + " kinds of steps are captured already, and this is another: give " +
                       "batches of fewer shapes";
  }
  if (!captured->reason.empty()) {
    refuse(captured->reason);
    return false;
  }
  if (captured->graphs.empty()) {
    if (!capture(*captured, signature, execution)) return false;
  } else {
    replay(*captured, signature, execution);
  }
  ++report_.replayed;
  report_.last_was_replayed = true;
  report_.reason.clear();
  return true;
}

void StepGraphs::refuse(const std::string& why) {
  ++report_.eager;
  report_.last_was_replayed = false;
  report_.reason = why;
  say(why);
}

void StepGraphs::forgive() {
  if (failed_ == nullptr) return;
  --failed_->failures;
  failed_->reason.clear();
  failed_ = nullptr;
}

void StepGraphs::say(const std::string& why) {
  if (why.empty() || options_.graph.is_auto()) return;
  if (std::find(said_.begin(), said_.end(), why) != said_.end()) return;
  said_.push_back(why);
  TORCH_WARN("a step runs without a graph: ", why);
}

CapturedSteps StepGraphs::report() const {
  CapturedSteps report = report_;
  report.graphs = static_cast<int>(
      std::count_if(captured_.begin(), captured_.end(), [](const Captured& own) { return !own.graphs.empty(); }));
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
  for (const Captured& own : captured_) {
    for (const GradientPtr& other : own.after) {
      if (other && other->tensor.is_same(gradient)) return other;
    }
  }
  return nullptr;
}

bool StepGraphs::is_held_elsewhere(const Captured& captured) const {
  const auto is_any_held = [&] {
    for (std::size_t i = 0; i < captured.after.size(); ++i) {
      if (captured.after[i] && !captured.before[i] && !captured.after[i]->is_ours()) return true;
    }
    return false;
  };
  // Another replica, a thread of this process, has told that it has read a gradient, and may be about to let it go.
  for (int i = 0; i < kPatience && parameters_.has_replicas() && is_any_held(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return is_any_held();
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

class StepGraphs::Capture final : public StepPieces {
 public:
  Capture(StepGraphs& graphs, Captured& made, std::uint64_t step) : graphs_(graphs), made_(made), step_(step) {}

  void run(const std::function<void()>& work, const std::function<void()>& fill) override {
    std::unique_ptr<DeviceGraph> graph;
    {
      const GraphRandomScope random(*made_.random);
      graph = graphs_.graphs_->capture(work, /*makes_room=*/made_.graphs.empty());
    }
    const at::NoGradGuard no_graph;
    made_.random->set_step(graphs_.options_.seed, step_);
    fill();
    graph->replay();
    made_.graphs.push_back(std::move(graph));
  }
  [[nodiscard]] bool is_capture() const override { return true; }
  CapturedMessage& message() override { return made_.messages.emplace_back(); }
  std::vector<DeviceTimes::Mark>& marks() override {
    made_.marks.resize(made_.graphs.size());
    return made_.marks.back();
  }
  void exchange() override { has_exchanged_ = true; }
  /// Whether the step has changed anything.
  [[nodiscard]] bool has_begun() const { return has_exchanged_ || !made_.graphs.empty(); }

 private:
  StepGraphs& graphs_;
  Captured& made_;
  std::uint64_t step_;
  bool has_exchanged_ = false;
};

class StepGraphs::Replay final : public StepPieces {
 public:
  explicit Replay(Captured& captured) : captured_(captured) {}

  void run(const std::function<void()>& /*work*/, const std::function<void()>& fill) override {
    fill();
    captured_.graphs.at(graph_++)->replay();
  }
  [[nodiscard]] bool is_capture() const override { return false; }
  CapturedMessage& message() override { return captured_.messages.at(message_++); }
  std::vector<DeviceTimes::Mark>& marks() override { return captured_.marks.at(graph_ - 1); }
  void exchange() override {}

 private:
  Captured& captured_;
  std::size_t graph_ = 0;
  std::size_t message_ = 0;
};

/// What differs from step to step, except gradients and random numbers.
void StepGraphs::bring_in(Captured& captured, const StepSignature& signature) {
  if (!captured.inputs.empty()) at::_foreach_copy_(captured.inputs, signature.tensors(), /*non_blocking=*/true);
  if (captured.seeds.numel() > 0) upload(losses_.seeds(), captured.seeds);
}

void StepGraphs::bring_out(Captured& captured, const Execution& execution) {
  losses_.set_losses(copies_of(captured.losses));
  for (std::size_t m = 0; m < captured.outputs.size(); ++m) execution.outputs[m] = copy_of(captured.outputs[m]);
}

bool StepGraphs::capture(Captured& captured, const StepSignature& signature, const Execution& execution) {
  Captured made;
  made.key = captured.key;
  made.retaken = captured.retaken;
  made.random = std::make_unique<StreamSeeds>(*graphs_, device_);
  for (const at::Tensor& tensor : signature.tensors()) made.inputs.push_back(like(tensor));
  made.seeds =
      at::zeros({static_cast<std::int64_t>(losses_.seeds().size())}, at::TensorOptions(at::kDouble).device(device_));
  std::vector<at::Tensor> originals;  // gradients before the step
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    at::Tensor& gradient = gradient_of(i);
    originals.push_back(gradient);
    GradientPtr& before = made.before.emplace_back();
    if (!gradient.defined()) continue;
    before = known(gradient);
    if (!before) before = std::make_shared<Gradient>(Gradient{like(gradient), 0});
  }
  bring_in(made, signature);
  std::vector<at::Tensor> elsewhere = bring_in_gradients(made);
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    if (made.before[i]) gradient_of(i) = made.before[i]->tensor;
  }
  StepInputs inputs = signature.with(execution.inputs, made.inputs);
  const ValueDict keywords = signature.with(*execution.inputs.loss_keywords, made.inputs);
  inputs.loss_keywords = &keywords;
  std::exception_ptr failure;
  bool is_aborted = false;
  std::string why;
  Capture pieces(*this, made, execution.inputs.number);
  losses_.begin_capture(inputs, made.seeds);
  try {
    const at::AutoGradMode training(true);
    execution.run(inputs, pieces);
  } catch (const AbortedError& error) {  // by another rank
    failure = std::current_exception();
    is_aborted = true;
    why = error.what();
  } catch (const c10::Error& error) {
    failure = std::current_exception();
    why = first_line(error.what_without_backtrace());
  } catch (const std::exception& error) {
    failure = std::current_exception();
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
  }
  originals.clear();
  if (why.empty()) {
    for (const GradientPtr& after : made.after) {
      if (after && after->storage_uses == 0) after->storage_uses = holders_of(after->tensor.storage());
    }
    captured = std::move(made);
    const at::NoGradGuard no_graph;
    bring_out_gradients(captured, elsewhere);
    bring_out(captured, execution);
    return true;
  }
  if (is_aborted) std::rethrow_exception(failure);
  why = "it cannot be captured: " + why;
  failed_ = &captured;
  if (++captured.failures == kFailures || pieces.has_begun()) captured.reason = why;
  if (pieces.has_begun()) {
    current_stream(device_).synchronize();
    say(why);
    if (failure) std::rethrow_exception(failure);
    throw InvalidArgument(why);
  }
  refuse(captured.reason);
  report_.reason = why;
  return false;
}

void StepGraphs::replay(Captured& captured, const StepSignature& signature, const Execution& execution) {
  const at::NoGradGuard no_graph;
  bring_in(captured, signature);
  captured.random->set_step(options_.seed, execution.inputs.number);
  const std::vector<at::Tensor> elsewhere = bring_in_gradients(captured);
  Replay pieces(captured);
  execution.run(execution.inputs, pieces);
  bring_out_gradients(captured, elsewhere);
  bring_out(captured, execution);
}

}  // namespace stagecraft
