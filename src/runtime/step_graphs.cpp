// Which steps are captured, and which of them is replayed.

#include "step_graphs.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "program.h"
#include "stagecraft/core/error.h"
#include "stagecraft/transport/streams.h"

namespace stagecraft {
namespace {

constexpr int kMostCaptured = 16;        // each keeps gradients of its own
constexpr std::size_t kMostKinds = 256;  // of steps, captured or not
// Steps that have to be captured anew too often stay eager: a capture takes about as long as an eager step.
constexpr int kRetakes = 3;
constexpr int kReplaysPerRetake = 4;  // for which one more is allowed
constexpr int kFailures = 2;
constexpr std::uint64_t kMoves = 3;  // of parameters and buffers, likewise
constexpr std::uint64_t kReplaysPerMove = 4;

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
  if (losses_.has_losses()) signature.add(*inputs.loss_keywords);
  signature.add_modes();
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
  std::vector<std::uint64_t> places;
  for (const Stage& stage : stages_) {
    for (const auto* tensors : {&stage.parameters(), &stage.buffers()}) {
      for (const auto& [name, tensor] : *tensors) {
        const bool is_one_piece = tensor.defined() && tensor.layout() == at::kStrided;
        places.push_back(is_one_piece ? reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) : 0);
        if (!is_one_piece) continue;
        for (const auto numbers : {tensor.sizes(), tensor.strides()}) {
          places.insert(places.end(), numbers.begin(), numbers.end());
        }
      }
    }
  }
  if (places == places_) return;
  if (!places_.empty()) ++moves_;
  places_ = std::move(places);
  forget();
}

void StepGraphs::forget() {
  if (!kinds_.empty()) current_stream(device_).synchronize();
  kinds_.clear();
  kept_.clear();
  current_ = nullptr;
}

void StepGraphs::drop(Kind& kind) {
  current_stream(device_).synchronize();
  std::erase_if(kept_, [](const auto& one) { return one.first->is_ours(); });
  for (std::size_t i = 0; i < kind.captured->after.size(); ++i) {
    const GradientPtr& made = kind.captured->after[i];
    if (made && !kind.captured->before[i] && !made->is_ours()) kept_.emplace_back(made, kind.captured->number);
  }
  leave_uncomputed(*kind.captured);
  fill_with_nan(kind.captured->made);
  kind.captured.reset();
}

/// Inputs that differ in every step would otherwise fill the memory of the host.
void StepGraphs::forget_oldest() {
  if (kinds_.size() < kMostKinds) return;
  const auto oldest = std::find_if(kinds_.begin(), kinds_.end(), [](const Kind& kind) { return !kind.captured; });
  if (oldest == kinds_.end()) return;
  kinds_.erase(oldest);
  say("nearly every step is of another kind: give batches of fewer shapes, and numbers as tensors");
}

void StepGraphs::begin_step(bool training) {
  current_ = nullptr;
  is_learning_ = false;
  is_checking_ = false;
  has_given_up_ = false;
  if (training) drop_if_moved();
  regain_gradients();
  note_replaced(/*by_modules=*/false);
}

bool StepGraphs::is_settled(const StepSignature& signature) {
  const std::vector<std::uint64_t>& own = signature.key();
  bool is_known = false;
  for (const Kind& kind : kinds_) {
    if (kind.key.size() != own.size() + 1 || !std::equal(own.begin(), own.end(), kind.key.begin())) continue;
    is_known = true;
    const auto is_ready = [&](const CapturedStep& captured) {
      return !captured.why_outdated() && !captured.is_doubted && !overwrites(captured);
    };
    if (kind.reason.empty() && (!kind.captured || !is_ready(*kind.captured))) return false;
  }
  return is_known;
}

/// The step has to be captured anew, because of `why`.
void StepGraphs::retake(Kind& kind, const char* why) {
  drop(kind);
  if (++kind.retaken >= kRetakes + kind.replayed / kReplaysPerRetake) kind.reason = why;
}

StepGraphs::Outlook StepGraphs::prepare(StepSignature& signature, const Execution& execution) {
  signature.add(execution.others);
  current_ = find(signature.key());
  if (current_ == nullptr) {
    forget_oldest();
    current_ = &kinds_.emplace_back();
    current_->key = signature.key();
  }
  if (moves_ > kMoves + report_.replayed / kReplaysPerMove) {
    const char* why = "parameters or buffers have another address every few steps: change them in place, with copy_()";
    say(why);
    return {Outlook::Kind::kNotNow, why};
  }
  if (current_->captured && !current_->reason.empty()) drop(*current_);
  if (current_->captured) {
    if (const char* why = current_->captured->why_outdated()) {
      const bool is_missing = current_->captured->lacks_what_it_read();
      retake(*current_, why);
      // A module that makes anew what somebody has taken away does that in this step, and not in the next ones.
      if (is_missing && current_->reason.empty()) current_->is_learned = false;
    }
  }
  if (current_->captured && current_->captured->is_doubted) {
    is_checking_ = true;
    return {Outlook::Kind::kNotNow,
            "modules have replaced a tensor that it reads: this step shows whether by the same"};
  }
  if (!current_->is_learned) {
    is_learning_ = true;
    current_->arriving.clear();
    current_->obstacle.clear();
    return {Outlook::Kind::kNotNow, "the first step of its kind is not captured"};
  }
  if (current_->captured && overwrites_after_all(*current_->captured)) {
    retake(*current_,
           "gradients of earlier steps are still in use, and a replay would overwrite them: clone what you keep, and "
           "zero gradients with set_to_none");
  }
  if (!current_->captured && current_->reason.empty() && graphs() == kMostCaptured) {
    current_->reason = std::to_string(kMostCaptured) +
                       " kinds of steps are captured already, and this is another: give " + "batches of fewer shapes";
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
  if (current_ != nullptr && current_->captured) {
    // The step runs eagerly now: modules must not begin with what the capture has left, nor get it back later.
    current_->captured->made.empty() ? leave_uncomputed(*current_->captured) : drop(*current_);
  }
  refuse({});
  report_.reason = why;
}

void StepGraphs::give_up(const std::string& why) {
  if (!current_->reason.empty()) return refuse(current_->reason);
  has_given_up_ = true;
  if (current_->captured) drop(*current_);
  // What a module carries may be missing in a later step, which could then be captured.
  if (++current_->failures >= kFailures || current_->carries) {
    current_->reason = why;
    current_->has_failed = true;
  }
  refuse(current_->reason);
  report_.reason = why;
}

void StepGraphs::stay_eager(const std::string& why) {
  if (current_ == nullptr) return;
  current_->reason = why;
  current_->has_failed = true;
  has_given_up_ = false;
}

void StepGraphs::forgive() {
  if (!has_given_up_ || current_ == nullptr) return;
  --current_->failures;
  current_->reason.clear();
  current_->has_failed = false;
  has_given_up_ = false;
}

void StepGraphs::end_eager(CaptureMemory* watch) {
  if (is_learning_) current_->is_learned = true;
  is_learning_ = false;
  if (watch != nullptr && current_->captured) current_->captured->end_doubt(*watch);
  is_checking_ = false;
  note_replaced(/*by_modules=*/true);
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

const CapturedMessage& StepGraphs::learned(const Tag& tag) const {
  for (const CapturedMessage& known : current_->arriving) {
    if (known.tag == tag) return known;
  }
  throw InternalError("the first step of its kind has not received " + to_text(tag));
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

}  // namespace stagecraft
